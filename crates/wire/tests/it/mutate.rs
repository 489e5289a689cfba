//! A seeded mutator over captures and generated messages: the fuzzer that runs with every test run, on stable Rust.
//!
//! `BINDERY_FUZZ_ITERATIONS` sets the total number of inputs (200,000 unless set), `SEED` the seed (1 unless set). A failure
//! prints both the seed and the input. The canaries at the end plant bugs and demand that this reports them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::checks::{self, Check};
use crate::common::golden::captures;
use crate::common::slow::{self, Seen};
use crate::common::{encoded_request, messages};
use bindery_wire::{v2, v3};
use bytes::{Bytes, BytesMut};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const ITERATIONS_DEFAULT: u64 = 200_000;
const INPUT_SIZE_BYTES_MAX: usize = 4096;
/// Values at which codecs go wrong: signs, limits, lengths near ours, the bytes that tell v2 from v3.
const INTERESTING: [i64; 20] = [
    0,
    1,
    2,
    3,
    4,
    7,
    20,
    24,
    36,
    64,
    100,
    107,
    127,
    128,
    255,
    1024,
    -1,
    i32::MAX as i64,
    i32::MIN as i64,
    i64::MIN,
];

/// SplitMix64: small, and the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is not 0.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

fn number_from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => default,
    }
}

/// Payloads to start from: every captured frame, and messages of every kind.
fn corpus(seed: u64) -> Vec<Vec<u8>> {
    let mut corpus: Vec<Vec<u8>> = Vec::new();
    for capture in captures() {
        corpus.extend(capture.payloads().into_iter().map(<[u8]>::to_vec));
    }
    let mut rng_seed = [0; 32];
    rng_seed[..8].copy_from_slice(&seed.to_be_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &rng_seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut list = bindery_wire::EntryAvailability::default();
    for id in [0, 1, 2, 9, 10] {
        list.push(bindery_types::EntryId::new(id).expect("not negative"));
    }
    corpus.push(list.encode().to_vec());
    for _ in 0..200 {
        corpus.push(
            encoded_request(&generated(&crate::common::request(), &mut runner).borrowed()).split_off(4),
        );
        corpus.push(generated(&crate::common::response(), &mut runner).frame().split_off(4));
        let (mut request, mut response) = (BytesMut::new(), BytesMut::new());
        v3::put_frame(&generated(&messages::request(), &mut runner).into_message(), &mut request);
        v3::put_frame(&generated(&messages::response(), &mut runner), &mut response);
        corpus.push(request[4..].to_vec());
        corpus.push(response[4..].to_vec());
    }
    corpus
}

fn generated<S: Strategy>(strategy: &S, runner: &mut TestRunner) -> S::Value {
    strategy.new_tree(runner).expect("strategies here reject nothing").current()
}

/// A check's name and whether bytes are what it checks.
type Kind = (&'static str, fn(&[u8]) -> bool);

const KINDS: [Kind; 4] = [
    ("v2_request", |bytes| v2::Request::decode(bytes).is_ok()),
    ("v2_response", |bytes| v2::Response::decode(bytes).is_ok()),
    ("v3_request", |bytes| v3::Request::decode(Bytes::copy_from_slice(bytes)).is_ok()),
    ("v3_response", |bytes| v3::decode_response(Bytes::copy_from_slice(bytes)).is_ok()),
];

/// The part of the corpus that a check starts from: its own kind; everything when it has none.
fn starts<'a>(name: &str, corpus: &'a [Vec<u8>]) -> Vec<&'a Vec<u8>> {
    let is_own = KINDS.iter().find(|(kind, _)| *kind == name).map(|(_, is_own)| is_own);
    corpus.iter().filter(|bytes| is_own.is_none_or(|is_own| is_own(bytes))).collect()
}

fn mutate(input: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    // One in sixteen goes unchanged; most get a change or two, some many.
    let changes = match random.below(16) {
        0 => 0,
        1..=12 => 1 + random.below(3),
        _ => 1 + random.below(16),
    };
    for _ in 0..changes {
        let at = random.below(input.len() + 1);
        let here = at.min(input.len().saturating_sub(1));
        match random.below(9) {
            0 => input.iter_mut().skip(here).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
            1 => input.iter_mut().skip(here).take(1).for_each(|byte| *byte = random.next() as u8),
            2 => input.truncate(at),
            3 => drop(input.drain(at..input.len().min(at + 1 + random.below(9)))),
            4 => drop(input.splice(at..at, std::iter::repeat_n(random.next() as u8, 1 + random.below(9)))),
            5 => {
                // A number of 1, 2, 4 or 8 bytes.
                let value = INTERESTING[random.below(INTERESTING.len())].to_be_bytes();
                let size = (1 << random.below(4)).min(input.len() - here);
                input[here..here + size].copy_from_slice(&value[8 - size..]);
            }
            6 => {
                // The header: version, opcode and flags decide most of what happens.
                let head = [random.below(4), random.below(9), 0, random.below(8)];
                let size = input.len().min(4);
                input[..size].copy_from_slice(&head.map(|byte| byte as u8)[..size]);
            }
            7 => {
                let other = &corpus[random.below(corpus.len())];
                let from = random.below(other.len() + 1);
                drop(input.splice(at.., other[from..].iter().copied()));
            }
            _ => {
                let end = input.len().min(at + 1 + random.below(40));
                let copy = input[at..end].to_vec();
                drop(input.splice(at..at, copy));
            }
        }
    }
    input.truncate(INPUT_SIZE_BYTES_MAX);
}

/// A byte for the chunking, then some frames, of which one may state a wrong length.
fn stream(input: Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut out = vec![random.next() as u8];
    let wrong = random.below(8);
    for index in 0..random.below(6) {
        let other = &corpus[random.below(corpus.len())];
        let payload = if index == 0 { &input } else { other };
        let length = match (index == wrong, random.below(2)) {
            (true, 0) => INTERESTING[random.below(INTERESTING.len())] as i32,
            (true, _) => payload.len() as i32 + random.below(9) as i32 - 4,
            (false, _) => payload.len() as i32,
        };
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(payload);
    }
    out.truncate(out.len() - random.below(3).min(out.len() - 1));
    out
}

/// Runs `check` on `iterations` inputs; the first failure, described so that it can be repeated.
fn hunt(name: &str, check: Check, iterations: u64, seed: u64) -> Result<(), String> {
    let corpus = corpus(seed);
    let starts = starts(name, &corpus);
    let mut random = Random(seed);
    for iteration in 0..iterations {
        let mut input = starts[random.below(starts.len())].clone();
        mutate(&mut input, &corpus, &mut random);
        if name == "frames" {
            input = stream(input, &corpus, &mut random);
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| check(&input))).unwrap_or_else(|panic| {
            let message = panic.downcast_ref::<String>().cloned();
            let message = message.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(format!("panicked: {}", message.unwrap_or_default()))
        });
        if let Err(error) = outcome {
            let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
            return Err(format!("{name}, SEED={seed}, input {iteration}: {error}\ninput: {hex}"));
        }
    }
    Ok(())
}

/// How many of `iterations` inputs get past the decoder: a mutator that only makes rubbish tests nothing.
fn count_well_formed(kind: Kind, iterations: u64, seed: u64) -> usize {
    let corpus = corpus(seed);
    let starts = starts(kind.0, &corpus);
    let mut random = Random(seed);
    let mut passes = || {
        let mut input = starts[random.below(starts.len())].clone();
        mutate(&mut input, &corpus, &mut random);
        (kind.1)(&input)
    };
    (0..iterations).filter(|_| passes()).count()
}

#[test]
fn no_input_breaks_a_codec() {
    let seed = number_from_env("SEED", 1);
    let each =
        number_from_env("BINDERY_FUZZ_ITERATIONS", ITERATIONS_DEFAULT).div_ceil(checks::ALL.len() as u64);
    println!("SEED={seed}, {each} inputs for each of {} checks", checks::ALL.len());
    let failures: Vec<String> =
        checks::ALL.iter().filter_map(|(name, check)| hunt(name, *check, each, seed).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn the_mutator_keeps_enough_inputs_well_formed() {
    let seed = number_from_env("SEED", 1);
    for kind in KINDS {
        let count = count_well_formed(kind, 10_000, seed);
        println!("{}: {count} of 10,000 mutated inputs are well-formed", kind.0);
        assert!((1000..9000).contains(&count), "{}: {count}", kind.0);
    }
}

/// Planted: the key of a fencing read is expected at every version, not only from version 2 on.
fn canary_that_misreads_old_versions(packet: &[u8]) -> Result<(), String> {
    let key_missing = |packet: &[u8]| packet.len() < 40 && packet[..4] == [1, 2, 0, 1];
    let planted = if packet.len() >= 4 && key_missing(packet) { Seen::Close } else { slow::request(packet) };
    if planted == slow::request(packet) { Ok(()) } else { Err("disagrees".to_owned()) }
}

/// Planted: the sizes inside a batch are trusted.
fn canary_that_trusts_a_size(packet: &[u8]) -> Result<(), String> {
    if packet.starts_with(&[2, 7, 0, 0, 0, 0, 0, 0]) && packet.len() >= 36 {
        let size = i32::from_be_bytes([packet[32], packet[33], packet[34], packet[35]]);
        let entry = &packet[36..][..size as usize];
        return if entry.len() > packet.len() { Err("impossible".to_owned()) } else { Ok(()) };
    }
    Ok(())
}

/// Planted: a frame one byte over the limit passes.
fn canary_that_miscounts_the_limit(input: &[u8]) -> Result<(), String> {
    let Some(prefix) = input.get(1..5) else { return Ok(()) };
    let length = i64::from(i32::from_be_bytes([prefix[0], prefix[1], prefix[2], prefix[3]]));
    let real = (0..=1020).contains(&length);
    let planted = (0..=1024).contains(&length);
    if real == planted { Ok(()) } else { Err("disagrees".to_owned()) }
}

#[test]
fn planted_bugs_are_reported() {
    let seed = number_from_env("SEED", 1);
    let canaries: [(&str, Check, &str); 3] = [
        ("v2_request", canary_that_misreads_old_versions, "disagrees"),
        ("v2_response", canary_that_trusts_a_size, "panicked"),
        ("frames", canary_that_miscounts_the_limit, "disagrees"),
    ];
    for (name, check, how) in canaries {
        let found = hunt(name, check, ITERATIONS_DEFAULT, seed);
        let report = found.expect_err("a planted bug was not found within the budget");
        assert!(report.contains(how) && report.contains(&format!("SEED={seed}")), "{name}: {report}");
    }
}
