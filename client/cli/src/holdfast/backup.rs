//! `holdfast cluster backup` and `holdfast backup`.

use std::fs::File;
use std::io::{BufReader, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast::Admin;
use holdfast_cli::{block_on, hex};
use holdfast_core::{Backup, BackupError, BackupHeader, LockTable};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::args::{BackupCommand, Global};
use crate::failure::{Failure, NOT_REACHED, OWN_ERROR, REFUSED};
use crate::{freeze, show};

/// Bytes read of a file at once.
const READ_BYTES: usize = 256 << 10;

/// `holdfast cluster backup`: the file appears only when it is whole.
pub(crate) fn take(
    global: &Global,
    admin: &Admin,
    file: &Path,
    force: bool,
) -> Result<u8, Failure> {
    if !force && file.exists() {
        let message = format!("{} is there; give another name, or --force", file.display());
        return Err(Failure::new(OWN_ERROR, message));
    }
    let mut beside = beside(file)?;
    block_on(receive(admin, &mut beside, file))??;
    let not_written = |error| not_written(file, error);
    beside.as_file().sync_all().map_err(not_written)?;
    beside.rewind().map_err(not_written)?;
    let (header, table) = read(beside.as_file()).map_err(|error| {
        Failure::new(REFUSED, format!("what came is no backup: {error}; take it again"))
    })?;
    put(beside, file, force)?;
    let content = Content { file, header: &header, table: &table };
    show::line(if global.json { content.json().to_string() } else { content.written() });
    Ok(0)
}

/// A file in the same folder, for its owner only. It goes if this program ends by itself before the backup
/// is whole.
fn beside(file: &Path) -> Result<NamedTempFile, Failure> {
    let name = file.file_name().ok_or_else(|| {
        Failure::new(OWN_ERROR, format!("{} is no name of a file", file.display()))
    })?;
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    let made =
        tempfile::Builder::new().prefix(&prefix).suffix(".part").tempfile_in(folder_of(file));
    made.map_err(|error| not_written(file, error))
}

fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn not_written(file: &Path, error: std::io::Error) -> Failure {
    Failure::own(&format!("{} was not written", file.display()), error)
}

async fn receive(admin: &Admin, out: &mut NamedTempFile, file: &Path) -> Result<(), Failure> {
    let mut backup = admin.backup().await?;
    loop {
        match backup.chunk().await {
            Ok(Some(chunk)) => out.write_all(&chunk).map_err(|error| not_written(file, error))?,
            Ok(None) => return Ok(()),
            Err(error) => {
                let message = format!("{} was not written: {error}", file.display());
                return Err(Failure::new(NOT_REACHED, message));
            }
        }
    }
}

/// Gives the file its name, and makes that durable.
fn put(beside: NamedTempFile, file: &Path, force: bool) -> Result<(), Failure> {
    let put = if force { beside.persist(file) } else { beside.persist_noclobber(file) };
    put.map_err(|error| not_written(file, error.error))?;
    let folder = File::open(folder_of(file));
    folder.and_then(|folder| folder.sync_all()).map_err(|error| not_written(file, error))
}

/// `holdfast backup`.
pub(crate) fn run(global: &Global, command: &BackupCommand) -> Result<u8, Failure> {
    let (BackupCommand::Verify { file } | BackupCommand::Show { file }) = command;
    let cannot = |error| Failure::own(&format!("{} cannot be read", file.display()), error);
    let open = File::open(file).map_err(cannot)?;
    let (header, table) = match read(&open) {
        Ok(backup) => backup,
        Err(BackupError::Io(error)) => return Err(cannot(error)),
        Err(error) => return Err(Failure::new(REFUSED, format!("{}: {error}", file.display()))),
    };
    let content = Content { file, header: &header, table: &table };
    show::line(match command {
        _ if global.json => content.json().to_string(),
        BackupCommand::Verify { .. } => content.whole(),
        BackupCommand::Show { .. } => content.text(),
    });
    Ok(0)
}

fn read(file: &File) -> Result<(BackupHeader, LockTable), BackupError> {
    Backup::read_from(&mut BufReader::with_capacity(READ_BYTES, file))
}

/// A whole backup.
struct Content<'a> {
    file: &'a Path,
    header: &'a BackupHeader,
    table: &'a LockTable,
}

impl Content<'_> {
    fn written(&self) -> String {
        format!("{}: {}, whole and synced", self.file.display(), self.of())
    }

    fn whole(&self) -> String {
        format!("{}: {}, whole", self.file.display(), self.of())
    }

    fn of(&self) -> String {
        let origin = &self.header.origin;
        let (name, id) = (show::escaped(origin.cluster_name.as_str()), hex(&origin.cluster_id));
        let at = show::instant(origin.taken_ms).unwrap_or_default();
        format!("a backup of cluster {name} ({id}) of {at}")
    }

    fn text(&self) -> String {
        let (header, rules) = (self.header, self.table.rules());
        let instant = |ms| show::instant(ms).unwrap_or_else(|| "-".to_owned());
        let names =
            |names: Vec<String>| if names.is_empty() { "-".into() } else { names.join(", ") };
        let scopes = header
            .scopes
            .iter()
            .map(|(scope, epoch)| format!("{} in epoch {epoch}", show::escaped(scope.as_str())));
        let tokens = rules.tokens().map(|(name, _)| show::escaped(name.as_str()));
        let known = rules.roles().map(|(role, _)| show::escaped(role.as_str()));
        let state = if rules.are_on() { "on" } else { "off" };
        let freezes = self.table.freezes().map(|(prefix, _)| freeze::names(prefix.as_str()));
        let rows = [
            ("cluster name", show::escaped(header.origin.cluster_name.as_str())),
            ("cluster id", hex(&header.origin.cluster_id)),
            ("taken", instant(header.origin.taken_ms)),
            ("written by", show::escaped(header.origin.written_by.as_str())),
            ("log index", header.index.to_string()),
            ("last change", instant(header.stamp_ms)),
            ("state hash", hex(&header.state_hash)),
            ("values", format!("{} (a restore marks them as suspect)", header.values)),
            (
                "sessions",
                format!("{} (a restore leaves them out, with holds and waits)", header.sessions),
            ),
            (
                "last token",
                format!("epoch {}, counter {}", header.counters.epoch, header.counters.token),
            ),
            ("scopes", names(scopes.collect())),
            ("freezes", names(freezes.collect())),
            ("sequences", self.sequences().to_string()),
            ("rules", state.to_owned()),
            ("roles", names(known.collect())),
            ("bearer tokens", names(tokens.collect())),
            ("longest lease", show::length(Duration::from_millis(header.largest_ttl_ms))),
        ];
        let rows = rows.into_iter().map(|(what, is)| vec![what.to_owned(), is]);
        format!("{}\n{}", self.whole(), show::table(&["WHAT", "IS"], rows))
    }

    fn sequences(&self) -> usize {
        self.table.sequences_after("", None).count()
    }

    fn json(&self) -> Value {
        let (header, rules) = (self.header, self.table.rules());
        let scopes = header.scopes.iter();
        let freezes = self.table.freezes().map(|(prefix, _)| prefix.as_str());
        json!({
            "file": self.file.display().to_string(),
            "cluster": hex(&header.origin.cluster_id),
            "cluster_name": header.origin.cluster_name.as_str(),
            "written_by": header.origin.written_by.as_str(),
            "taken": show::instant(header.origin.taken_ms),
            "index": header.index.get(),
            "last_change": show::instant(header.stamp_ms),
            "state_hash": hex(&header.state_hash),
            "epoch": header.counters.epoch,
            "token_counter": header.counters.token.to_string(),
            "sessions": header.sessions,
            "values": header.values,
            "largest_ttl_ms": header.largest_ttl_ms,
            "scopes": scopes.map(|(scope, epoch)| json!({ "scope": scope.as_str(), "epoch": epoch })).collect::<Vec<_>>(),
            "freezes": freezes.collect::<Vec<_>>(),
            "sequences": self.sequences(),
            "rules_on": rules.are_on(),
            "roles": rules.roles().map(|(role, _)| role.as_str()).collect::<Vec<_>>(),
            "tokens": rules.tokens().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        })
    }
}
