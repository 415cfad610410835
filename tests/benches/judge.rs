//! The judge alone: histories of one life's size and larger. The simulator has tens of thousands of
//! them judged, so the cost per record has to stay the same.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion};
use holdfast_tests::check::{Options, check};
use holdfast_tests::history::{Asked, Change, ClientId, Holding, Record, Shown, What};

const SIZES: [usize; 2] = [5_000, 50_000];
const CLIENTS: u64 = 20;
const MS: u64 = 1_000_000;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("judge");
    for names in [1, 8] {
        for size in SIZES {
            let records = Life::lived(names, size);
            let report = check(&records, Options::default());
            assert!(report.violations.is_empty(), "{report}");
            let id = BenchmarkId::new(format!("{names} names"), size);
            group.bench_function(id, |bench| {
                bench.iter(|| check(black_box(&records), Options::default()));
            });
        }
    }
    group.finish();
    criterion.final_summary();
}

/// Clients that take turns at a few names, and one who looks at them.
struct Life {
    records: Vec<Record>,
    /// What the last holder of each name left with it.
    values: Vec<Option<Shown>>,
    looks: u64,
}

impl Life {
    /// At least so many records of a life without a flaw.
    fn lived(names: usize, size: usize) -> Vec<Record> {
        let mut life = Self { records: Vec::new(), values: vec![None; names], looks: 0 };
        let mut turn = 0;
        while life.records.len() < size {
            life.turn(turn, usize::try_from(turn).unwrap_or(0) % names);
            turn += 1;
        }
        life.records
    }

    /// One record a millisecond.
    fn write(&mut self, client: u64, what: What) {
        let at_ns = self.records.len() as u64 * MS;
        self.records.push(Record { at_ns, client: ClientId(client), what });
    }

    /// A client asks, holds, writes, is looked at and gives back.
    fn turn(&mut self, turn: u64, which: usize) {
        let name = format!("traffic/{which}");
        let (client, request, token) = (turn % CLIENTS, 2 * turn + 1, turn + 1);
        let items = vec![Asked::exclusive(&name)];
        let names = vec![name.clone()];
        let within_ms = Some(30_000);
        self.write(client, What::Acquire { request, items, any: None, wait: true, within_ms });
        self.write(client, What::Queued { request, place: 0, index: Some(turn) });
        let values = self.values[which].clone().into_iter().collect();
        self.write(client, What::Granted { request, token, names: names.clone(), values });
        let until_ns = (self.records.len() as u64 + 9_000) * MS;
        for _ in 0..2 {
            self.write(client, What::Safe { until_ns });
            self.write(client, What::IsSafe { token, safe: true, names: names.clone() });
        }
        if turn.is_multiple_of(3) {
            self.set_value(client, (request + 1, token), which, &name);
        }
        if turn.is_multiple_of(4) {
            self.look(token, which, &name);
        }
        self.write(client, What::Accepted { token, name });
        self.write(client, What::Release { token, names: Vec::new() });
        self.write(client, What::Released { token, names: Vec::new() });
    }

    fn set_value(&mut self, client: u64, (request, token): (u64, u64), which: usize, name: &str) {
        let value = token.to_string();
        let change = Change::Set(value.clone());
        self.write(client, What::SetValue { request, token, name: name.into(), change });
        self.write(client, What::ValueSet { request });
        self.values[which] = Some(Shown { name: name.into(), value, token, suspect: false });
    }

    fn look(&mut self, token: u64, which: usize, name: &str) {
        self.looks += 1;
        let read = self.looks;
        self.write(CLIENTS, What::Read { read, name: name.into() });
        let holders = vec![Holding { token, shared: false }];
        let value = self.values[which].clone();
        self.write(
            CLIENTS,
            What::ReadDone { read, holders, value, waiting: 0, closed: None, frozen: false },
        );
    }
}
