//! The other side of the exchange: captures of spark-timely replayed by the real timely, and captures of its own.
//!
//!     interop check  KIND FILE...              judge each capture by itself, event by event
//!     interop replay KIND WORKERS FILE...      replay all captures together; what arrived, by the times of its messages
//!     interop write  KIND WORKERS DIRECTORY    capture a small dataflow into one file per worker
//!     interop send   KIND WORKERS HOST:PORT... the same into one socket per worker
//!
//! KIND is `text`, times u64 and records (String, u64), or `product`, times Product<u64, u64> and records u64.
//! Built with the feature v031 or v032: messages have a time, or a stamp of any number of times.
//! Whatever is wrong ends the program with a message and a code other than 0.

#[cfg(feature = "v031")]
extern crate timely_031 as timely;
#[cfg(feature = "v032")]
extern crate timely_032 as timely;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use serde::{de::DeserializeOwned, Serialize};
use timely::dataflow::operators::capture::{Capture, Event, EventReader, EventWriter, Replay};
use timely::dataflow::operators::{Exchange, Input, Inspect, Probe};
use timely::dataflow::{InputHandle, Scope};
use timely::order::Product;
use timely::progress::Timestamp;
use timely::worker::Worker;
use timely::Config;

/// The times of a message.
#[cfg(feature = "v031")]
fn times<T: Clone>(time: &T) -> Vec<T> {
    vec![time.clone()]
}

#[cfg(feature = "v032")]
fn times<T: Clone>(stamp: &timely::progress::Stamp<T>) -> Vec<T> {
    stamp.elements().to_vec()
}

/// How times and records are written for whoever compares them.
trait Show {
    fn show(&self) -> String;
}

impl Show for u64 {
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Show for String {
    fn show(&self) -> String {
        self.bytes().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl<A: Show, B: Show> Show for (A, B) {
    fn show(&self) -> String {
        format!("{}:{}", self.0.show(), self.1.show())
    }
}

impl Show for Product<u64, u64> {
    fn show(&self) -> String {
        format!("{}:{}", self.outer, self.inner)
    }
}

trait Data: Serialize + DeserializeOwned + Clone + Show + Send + 'static {}
impl<D: Serialize + DeserializeOwned + Clone + Show + Send + 'static> Data for D {}

/// A time, and where dataflows of such times are built: products only exist inside of a scope.
trait Time: Timestamp + Serialize + DeserializeOwned + Show {
    fn host<R>(worker: &mut Worker, build: impl FnOnce(Scope<Self>) -> R) -> R;
}

impl Time for u64 {
    fn host<R>(worker: &mut Worker, build: impl FnOnce(Scope<Self>) -> R) -> R {
        worker.dataflow::<u64, _, _>(build)
    }
}

impl Time for Product<u64, u64> {
    fn host<R>(worker: &mut Worker, build: impl FnOnce(Scope<Self>) -> R) -> R {
        worker.dataflow::<u64, _, _>(|outer| outer.scoped::<Product<u64, u64>, _, _>("Inner", build))
    }
}

/// Judge a capture: every event whole and without surplus bytes, the two rules of the protocol, nothing held at the end.
fn check<T: Time, D: Data>(file: &str) -> Result<usize, String> {
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|mut f| f.read_to_end(&mut bytes))
        .map_err(|e| e.to_string())?;
    let mut counts: BTreeMap<T, i64> = BTreeMap::from([(T::minimum(), 1)]);
    let (mut at, mut number) = (0, 0);
    while at < bytes.len() {
        let wrong = |what: &str| Err(format!("{file}: event {number} at byte {at}: {what}"));
        if bytes.len() < at + 8 {
            return wrong("half a length");
        }
        let length = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        if bytes.len() - at - 8 < length {
            return wrong("half an event");
        }
        let body = &bytes[at + 8..at + 8 + length];
        let event: Event<T, Vec<D>> = match bincode::deserialize(body) {
            Ok(event) => event,
            Err(error) => return wrong(&error.to_string()),
        };
        if bincode::serialize(&event).unwrap() != body {
            return wrong("bytes that timely would not have written");
        }
        let held = |time: &T, counts: &BTreeMap<T, i64>| counts.iter().any(|(low, n)| *n > 0 && low.less_equal(time));
        match event {
            Event::Messages(at, _) => {
                if !times(&at).iter().all(|time| held(time, &counts)) {
                    return wrong("a message at a time that is not held");
                }
            }
            Event::Progress(changes) => {
                if changes.iter().any(|(time, delta)| *delta > 0 && !held(time, &counts)) {
                    return wrong("a capability out of nothing");
                }
                for (time, delta) in changes {
                    *counts.entry(time).or_insert(0) += delta;
                }
                if counts.values().any(|n| *n < 0) {
                    return wrong("a capability given up that was not held");
                }
            }
        }
        at += 8 + length;
        number += 1;
    }
    match counts.values().find(|n| **n != 0) {
        Some(_) => Err(format!("{file}: not closed")),
        None => Ok(number),
    }
}

fn replay<T: Time, D: Data>(workers: usize, files: Vec<String>) {
    let found: Arc<Mutex<BTreeMap<String, Vec<String>>>> = Default::default();
    let shared = Arc::clone(&found);
    timely::execute(Config::process(workers), move |worker| {
        let readers: Vec<_> = (0..files.len())
            .filter(|i| i % worker.peers() == worker.index())
            .map(|i| EventReader::<T, Vec<D>, _>::new(File::open(&files[i]).expect("the file")))
            .collect();
        let into = Arc::clone(&shared);
        let probe = T::host(worker, |scope| {
            let (probe, _) = readers
                .replay_into(scope)
                .inspect_core(move |event| {
                    if let Ok((at, records)) = event {
                        let shown: Vec<String> = times(at).iter().map(Show::show).collect();
                        let mut all = into.lock().unwrap();
                        all.entry(shown.join(","))
                            .or_default()
                            .extend(records.iter().map(Show::show));
                    }
                })
                .probe();
            probe
        });
        // A capture that is not closed would keep this going for ever: `check` comes first.
        while !probe.done() {
            worker.step();
        }
    })
    .expect("the computation");
    let mut out = std::io::stdout().lock();
    for (time, mut records) in std::mem::take(&mut *found.lock().unwrap()) {
        records.sort();
        for record in records {
            writeln!(out, "{time} {record}").expect("the output");
        }
    }
    writeln!(out, "closed").expect("the output");
}

/// The times and records that `write` and `send` capture: 40 rounds, some without records.
fn record(round: u64, i: u64) -> (String, u64) {
    (format!("r\u{e4}{}", (round * 7 + i) % 11), round * 1000 + i)
}

fn capture<W: Write + 'static>(workers: usize, open: impl Fn(usize) -> W + Send + Sync + 'static) {
    timely::execute(Config::process(workers), move |worker| {
        let mut input = InputHandle::new();
        let writer = EventWriter::new(open(worker.index()));
        worker.dataflow::<u64, _, _>(|scope| {
            scope
                .input_from(&mut input)
                .exchange(|record: &(String, u64)| record.1)
                .container::<Vec<_>>()
                .capture_into(writer);
        });
        for round in 0..40 {
            for i in 0..(round * 13) % 50 {
                if i as usize % worker.peers() == worker.index() {
                    input.send(record(round, i));
                }
            }
            input.advance_to(round + 1);
            worker.step();
        }
    })
    .expect("the computation");
}

fn run<T: Time, D: Data>(mode: &str, arguments: &[String]) {
    match mode {
        "check" => {
            for file in arguments {
                match check::<T, D>(file) {
                    Ok(events) => println!("{file}: {events} events"),
                    Err(what) => {
                        eprintln!("{what}");
                        std::process::exit(1);
                    }
                }
            }
        }
        "replay" => replay::<T, D>(
            arguments[0].parse().expect("a number of workers"),
            arguments[1..].to_vec(),
        ),
        _ => panic!("no such mode: {mode}"),
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (mode, kind, rest) = (arguments[0].as_str(), arguments[1].as_str(), arguments[2..].to_vec());
    match (mode, kind) {
        ("write", "text") => {
            let folder = rest[1].clone();
            capture(rest[0].parse().expect("a number of workers"), move |i| {
                File::create(format!("{folder}/rust_w{i}.bin")).expect("the file")
            });
        }
        ("send", "text") => {
            let addresses = rest[1..].to_vec();
            capture(rest[0].parse().expect("a number of workers"), move |i| {
                TcpStream::connect(&addresses[i]).expect("the consumer")
            });
        }
        (_, "text") => run::<u64, (String, u64)>(mode, &rest),
        (_, "product") => run::<Product<u64, u64>, u64>(mode, &rest),
        _ => panic!("no such kind: {kind}"),
    }
}
