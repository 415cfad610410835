//! Mutated settings, in the file and on the command line: refused with a reason, or settings that
//! are shown as a file which gives the same settings.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::{Args, Command, FromArgMatches};
use holdfast_fuzz::{Outcome, Target, script};

use super::{Overrides, Settings};

/// The kinds of step: the file; all others are one argument each.
const FILE: u8 = 0;
const ARGUMENT: u8 = 1;

fn load(file: &Path, arguments: &[&OsStr]) -> Result<Settings, String> {
    // What a line of flags means does not depend on the program around it.
    let command = Overrides::augment_args(Command::new("holdfastd").no_binary_name(true));
    let matches = command.try_get_matches_from(arguments).map_err(|e| e.kind().to_string())?;
    let overrides = Overrides::from_arg_matches(&matches).map_err(|e| e.kind().to_string())?;
    Settings::load(Some(file), overrides, &matches).map_err(|error| error.to_string())
}

/// The effective settings without the source of each.
fn values(settings: &Settings) -> String {
    let said = settings.to_string();
    said.lines().flat_map(|line| [line.split("  # ").next().unwrap_or(line), "\n"]).collect()
}

fn seeds() -> [Vec<u8>; 2] {
    let sample = |name: &str| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/config");
        let text = fs::read_to_string(folder.join(name)).unwrap();
        // Without the comments: there is nothing to mutate in them.
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        lines.flat_map(|line| [line, "\n"]).collect::<String>()
    };
    let flags = ["--node-id", "2", "--listen", "[::1]:7420", "--members=1@a:1/b:2", "--insecure"];
    [sample("node.toml"), sample("cluster-2.toml")].map(|text| {
        let mut seed = Vec::new();
        script::push(&mut seed, FILE, text.as_bytes());
        for flag in flags.iter().take(4) {
            script::push(&mut seed, ARGUMENT, flag.as_bytes());
        }
        seed
    })
}

#[test]
fn no_settings_bring_the_reader_down() {
    let folder = tempfile::tempdir().unwrap();
    let (file, again) = (folder.path().join("node.toml"), folder.path().join("again.toml"));
    Target::new("settings", seeds()).run(|bytes| {
        let (mut text, mut arguments) = (&b""[..], Vec::new());
        for (kind, bytes) in script::steps(bytes) {
            match kind {
                FILE => text = bytes,
                _ => arguments.push(OsStr::from_bytes(bytes)),
            }
        }
        fs::write(&file, text).unwrap();
        let settings = load(&file, &arguments);
        if let Ok(settings) = &settings {
            fs::write(&again, settings.to_string()).unwrap();
            assert_eq!(values(&load(&again, &[]).unwrap()), values(settings));
        }
        Outcome::of(&settings)
    });
}
