use std::fs;

use holdfast_runtime::Runtime;
use tempfile::TempDir;

use super::*;
use crate::storage::disk::SystemDisk;
use crate::storage::record::RecordKind;

const STORE: [u8; 16] = [5; 16];
/// Small ones, so that a few records fill one.
const SIZES: SegmentSizes = SegmentSizes { first: 1024, largest: 4096 };

fn id(term: u64, index: u64) -> LogId {
    LogId { term, node_id: 1, index }
}

fn record(term: u64, index: u64, bytes: usize) -> Record {
    let payload = Bytes::from(vec![u8::try_from(index % 251).unwrap(); bytes]);
    Record { log_id: id(term, index), kind: RecordKind::Batch, payload }
}

fn at_once() -> Pace {
    Arc::new(|_| Box::pin(std::future::ready(())))
}

/// A log in a folder, with its keeper; what it should contain is kept beside it.
struct Log {
    folder: TempDir,
    segments: Option<Segments>,
    records: VecDeque<Record>,
    purged: Option<LogId>,
}

impl Log {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let mut log = Self { folder, segments: None, records: VecDeque::new(), purged: None };
        log.open().unwrap();
        log
    }

    /// Closes the log and opens it again; returns what it contains.
    fn open(&mut self) -> Result<VecDeque<Record>, OpenError> {
        drop(self.segments.take());
        let disk = Arc::new(SystemDisk);
        let opened = Segments::open(disk, self.folder.path(), STORE, SIZES, self.purged)?;
        let (segments, keeper, records) = opened;
        Runtime::system()
            .spawn("keeper", async move { keeper.run(at_once()).await.unwrap() })
            .detach();
        self.segments = Some(segments);
        Ok(records)
    }

    fn assert_is_whole(&mut self) {
        let records = self.open().unwrap();
        assert!(records == self.records, "{} of {} records", records.len(), self.records.len());
    }

    async fn put(&mut self, entry: Entry<'_>) {
        let segments = self.segments.as_mut().unwrap();
        if !segments.fits(entry) {
            segments.roll(entry).await.unwrap();
        }
        segments.write(entry).unwrap();
        segments.sync().unwrap();
    }

    async fn append(&mut self, records: Vec<Record>) {
        self.put(Entry::Append(&records)).await;
        self.records.extend(records);
    }

    async fn truncate(&mut self, keep: Option<u64>) {
        self.put(Entry::Truncate(keep)).await;
        self.records.retain(|record| Some(record.log_id.index) <= keep);
    }

    fn purge(&mut self, upto: LogId) {
        self.purged = Some(upto);
        self.segments.as_mut().unwrap().release(upto);
        self.records.retain(|record| record.log_id.index > upto.index);
    }

    /// The names of its files, in order.
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.path().join(format!("{number:016}.seg"))
    }

    /// The error of opening it after `harm` on the file of a segment.
    fn refused_after(&mut self, number: u64, harm: impl FnOnce(&mut Vec<u8>)) -> String {
        drop(self.segments.take());
        let path = self.path(number);
        let mut bytes = fs::read(&path).unwrap();
        harm(&mut bytes);
        fs::write(&path, bytes).unwrap();
        self.open().expect_err("it is refused").to_string()
    }
}

/// Lets the keeper finish what it has to do.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn records_come_back_from_many_segments() {
    let mut log = Log::new();
    log.assert_is_whole();
    for index in 0..100 {
        log.append(vec![record(1, index, 300)]).await;
    }
    assert!(log.files().len() > 8, "{:?}", log.files());
    log.assert_is_whole();
    log.append(vec![record(2, 100, 10), record(2, 101, 10)]).await;
    log.assert_is_whole();
}

#[tokio::test]
async fn a_commit_that_is_larger_than_a_segment_gets_one_of_its_own() {
    let mut log = Log::new();
    log.append(vec![record(1, 0, 50)]).await;
    log.append(vec![record(1, 1, 20_000)]).await;
    log.append(vec![record(1, 2, 50)]).await;
    log.assert_is_whole();
}

#[tokio::test]
async fn a_segment_made_ahead_that_is_too_short_is_replaced() {
    let mut log = Log::new();
    log.append(vec![record(1, 0, 600)]).await;
    settle().await;
    assert_eq!(log.files().len(), 2, "the next one is made ahead");
    log.append(vec![record(1, 1, 20_000)]).await;
    settle().await;
    // The longer one has its name, and the one after it is made ahead.
    assert_eq!(log.files().len(), 3, "{:?}", log.files());
    log.assert_is_whole();
}

#[tokio::test]
async fn truncations_hold_across_segments() {
    let mut log = Log::new();
    for index in 0..30 {
        log.append(vec![record(1, index, 300)]).await;
    }
    log.truncate(Some(11)).await;
    log.assert_is_whole();
    for index in 12..20 {
        log.append(vec![record(2, index, 300)]).await;
    }
    log.assert_is_whole();
    log.truncate(None).await;
    log.assert_is_whole();
    log.append(vec![record(3, 0, 10)]).await;
    log.assert_is_whole();
}

#[tokio::test]
async fn segments_whose_records_are_purged_are_used_again_and_the_folder_stays_small() {
    let mut log = Log::new();
    let mut most = 0;
    for index in 0..300 {
        log.append(vec![record(1, index, 300)]).await;
        if index % 20 == 19 {
            log.purge(id(1, index - 10));
            settle().await;
            most = most.max(log.files().len());
        }
    }
    log.assert_is_whole();
    assert!(most <= 5, "{most} files");
}

/// A snapshot was installed: the log goes on after it.
#[tokio::test]
async fn a_log_purged_beyond_its_end_goes_on_after_the_mark() {
    let mut log = Log::new();
    for index in 0..20 {
        log.append(vec![record(1, index, 300)]).await;
    }
    log.purge(id(3, 500));
    log.assert_is_whole();
    log.append(vec![record(3, 501, 10)]).await;
    log.assert_is_whole();
}

#[tokio::test]
async fn what_was_made_ahead_of_need_is_used_by_the_next_process() {
    let mut log = Log::new();
    log.append(vec![record(1, 0, 500)]).await;
    settle().await;
    assert_eq!(log.files().len(), 2);
    for _ in 0..3 {
        log.assert_is_whole();
        settle().await;
    }
    log.append(vec![record(1, 1, 500)]).await;
    log.append(vec![record(1, 2, 500)]).await;
    settle().await;
    log.assert_is_whole();
}

#[tokio::test]
async fn damage_is_refused_by_name() {
    let mut log = Log::new();
    for index in 0..40 {
        log.append(vec![record(1, index, 300)]).await;
    }
    settle().await;
    let flipped = |bytes: &mut Vec<u8>| bytes[200] ^= 4;
    let error = log.refused_after(2, flipped);
    assert!(error.contains("0002.seg is damaged: the frame at byte 64 cannot be read"), "{error}");
    let error = log.refused_after(2, |bytes| {
        flipped(bytes);
        bytes.truncate(1_000);
    });
    assert!(error.contains("it has 1000 bytes of 2048"), "{error}");
    let error = log.refused_after(2, |bytes| bytes[0] ^= 1);
    assert!(error.contains("0002.seg is damaged: not a Holdfast record"), "{error}");
    fs::remove_file(log.path(2)).unwrap();
    let error = log.open().err().unwrap().to_string();
    assert!(error.contains("0003.seg is damaged: the segment before it is missing"), "{error}");
    fs::remove_file(log.path(1)).unwrap();
    let error = log.open().err().unwrap().to_string();
    assert!(error.contains("stands where 0 belongs"), "{error}");
}

#[tokio::test]
async fn a_segment_without_its_last_frames_is_damage_if_another_follows() {
    let mut log = Log::new();
    for index in 0..10 {
        log.append(vec![record(1, index, 300)]).await;
    }
    let error = log.refused_after(1, |bytes| bytes[700..].fill(0));
    assert!(error.contains("0002.seg is damaged: the segment before it is missing"), "{error}");
}

/// The records after those in a segment that is gone were removed by a truncation, which is in a later
/// one.
#[tokio::test]
async fn a_truncation_down_to_the_purge_mark_frees_what_came_before_it() {
    let mut log = Log::new();
    for index in 0..12 {
        log.append(vec![record(1, index, 300)]).await;
    }
    log.purge(id(1, 4));
    log.truncate(Some(4)).await;
    log.purge(id(1, 4));
    settle().await;
    log.assert_is_whole();
    log.append(vec![record(2, 5, 300)]).await;
    log.assert_is_whole();
}
