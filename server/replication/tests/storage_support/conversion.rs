//! Power cuts while a folder of release 0.1 becomes one of today's: at each call, and once more in
//! the start after it.

use std::fs;

use super::*;
use crate::storage_support::folders::Image;

/// The folder that 0.1 left, on a disk of its own.
fn folder_of_0_1() -> TempDir {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/0.1/one-node");
    let root = TempDir::new().unwrap();
    for part in ["disk", "trash"] {
        fs::create_dir(root.path().join(part)).unwrap();
    }
    let copied = Image::of(&fixture).restore();
    let copying = Command::new("cp").arg("-r").arg(copied.path()).arg(data(&root)).status();
    assert!(copying.unwrap().success());
    root
}

fn data(root: &TempDir) -> PathBuf {
    root.path().join("disk/data")
}

/// What the folder holds, which is converted if it was not.
fn state(folder: &Path) -> Result<Model, String> {
    let store = Store::open(folder, options()).map_err(|error| error.to_string())?;
    Ok(Model::read(&store.log()))
}

/// Cuts at one in `stride` calls, from the first on, until a conversion ends before its cut. Returns
/// the number of cuts and what was lost.
fn cut_everywhere(suite: &Suite, stride: u64) -> (u64, Vec<String>) {
    let whole = state(&data(&folder_of_0_1())).unwrap();
    assert!(whole.records.len() > 20 && whole.vote.is_some());
    let (mut cuts, mut lost) = (0, Vec::new());
    for at in (1..).step_by(usize::try_from(stride).unwrap()) {
        let root = folder_of_0_1();
        if !suite.conversion(&root, at) {
            break;
        }
        cuts += 1;
        // The next start goes on with what the first one left, and may be cut as well.
        cuts += u64::from(suite.conversion(&root, 1 + Draw(at).below(at)));
        match state(&data(&root)) {
            Ok(found) if found == whole => {}
            Ok(_) => lost.push(format!("cut at call {at}: another log")),
            Err(refused) => lost.push(format!("cut at call {at}: refused: {refused}")),
        }
    }
    (cuts, lost)
}

impl Suite {
    /// Opens the folder in a process that is cut at a call; returns whether it was.
    fn conversion(&self, root: &TempDir, at: u64) -> bool {
        let report = root.path().join("report");
        File::create(&report).unwrap();
        let mut driver = self.driver(root.path(), &report, at);
        driver.env("HOLDFAST_DRIVER_TARGET", "conversion").env("LOSTWRITE_AT", at.to_string());
        self.is_cut(&mut driver, &format!("conversion, cut at call {at}"))
    }
}

/// All calls with `HOLDFAST_POWER_CUTS` above 1,000, one in five otherwise.
fn stride() -> u64 {
    if number("HOLDFAST_POWER_CUTS", 260) > 1_000 { 1 } else { 5 }
}

#[test]
fn a_conversion_that_is_cut_anywhere_goes_on_and_loses_nothing() {
    let (cuts, lost) = cut_everywhere(&Suite::new(None), stride());
    println!("conversion: {cuts} power cuts, lost in {}", lost.len());
    assert!(lost.is_empty(), "{lost:#?}");
    assert!(cuts * stride() > 40, "{cuts} cuts");
}

/// The suite detects losses: the new log must be durable before the old one counts no more.
#[test]
fn without_the_sync_of_the_new_log_a_conversion_loses_some() {
    let (cuts, lost) = cut_everywhere(&Suite::new(Some(".seg")), 2);
    println!("conversion without fdatasync: {cuts} power cuts, lost in {}", lost.len());
    assert!(!lost.is_empty());
}
