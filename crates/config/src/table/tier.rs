//! Object storage: all keys are ours.

use super::{Draft, Key, Place, Share, at, ours};
use crate::tier::{JOIN_BYTES_MAX, MEMORY_MIN_MIB, OBJECT_MIB, UPDATES};
use bindery_reconciler::core::updates::UpdateMode;
use bindery_tiering::object::Compression;

const MODES: [UpdateMode; 2] = [UpdateMode::Batched, UpdateMode::Single];
const COMPRESSIONS: [Compression; 2] = [Compression::None, Compression::Zstd];
/// The largest number of MB.
const MIB_MAX: i128 = 1 << 20;
/// The longest time in seconds, some three years.
const SECONDS_MAX: i128 = 100_000_000;

fn read_properties(draft: &mut Draft, text: &str) -> Result<(), String> {
    let pairs = text.split(',').map(|pair| match pair.trim().split_once('=') {
        Some((name, value)) if !name.is_empty() => Some((name.trim().to_owned(), value.trim().to_owned())),
        _ => None,
    });
    let pairs: Option<Vec<(String, String)>> = pairs.collect();
    draft.object.trim.properties =
        pairs.ok_or("give properties of ledgers as NAME=VALUE, separated by commas")?;
    Ok(())
}

#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    ours("tierUrl",
        "Object store to keep ledgers in: entries are read from there whose copies here were let go, and ledgers are moved there; \
         file:///directory, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix")
        .text(
            at!(object.url => |draft| draft.tier.as_ref().map(|(tier, _)| tier.store.url().to_string()))
            .flag("--tier", |args| args.tier.clone()),
        ),
    ours("tierRole", "Move ledgers there; otherwise that is left to others")
        .switch(
            at!(object.has_role => |draft| Some(draft.tier.as_ref().is_none_or(|(_, has_role)| *has_role)))
            .flag("--tier-role", |args| args.tier_role.map(bool::from)),
        ),
    ours("tierTls", "Tierer and repair speak TLS with bookies; true by default with tlsProviderFactoryClass")
        .by_rule(|draft| {
            draft.tier.as_ref().is_some_and(|(tier, _)| tier.security.tls.is_some()).to_string()
        }),
    ours("tierMemoryLimitMB", "Memory for moving ledgers").mebibytes(at!(object.config.memory_limit)).within(MEMORY_MIN_MIB as i128, MIB_MAX),
    ours("tierRateMB", "Bytes of ledgers read in a second; without limit when it is not set")
        .mebibytes(at!(object.config.bytes_per_second, if given)).within(1, MIB_MAX),
    ours("tierObjectSizeMB", "Largest object; 5 to 4096")
        .mebibytes(at!(object.config.settings.object_bytes_max)).within(OBJECT_MIB.0 as i128, OBJECT_MIB.1 as i128),
    ours("tierUpdatesInFlight", "Requests to bookies under way; 1 to 1024")
        .number(at!(object.config.settings.updates.in_flight_max as usize)).within(UPDATES.0 as i128, UPDATES.1 as i128),
    ours("tierUpdateMode", "batched: tell a bookie of many ledgers at once; single: one by one")
        .word(
            &["batched", "single"],
            Place::new(
                |draft, at| draft.object.config.settings.updates.mode = MODES[at],
                |draft| MODES.iter().position(|mode| *mode == draft.object.config.settings.updates.mode),
            ),
        ),
    ours("tierCompression", "Compression of objects: none or zstd")
        .word(
            &["none", "zstd"],
            Place::new(
                |draft, at| draft.object.config.compression = COMPRESSIONS[at],
                |draft| COMPRESSIONS.iter().position(|one| *one == draft.object.config.compression),
            ),
        ),
    ours("tierDeleteDelaySec", "Objects that nothing refers to are deleted after this time")
        .seconds(Place::new(
            |draft, delay| draft.object.config.settings.set_delete_delay(delay),
            |draft| Some(draft.object.config.settings.upkeep.delete_delay),
        ))
        .within(0, SECONDS_MAX),
    ours("tierRewriteBelow", "Objects of which a smaller share is referred to are rewritten; 0 for none")
        .share(Share::BelowOne, at!(object.config.settings.upkeep.rewrite_below)),
    ours("tierJoinBelowBytes", "Objects whose extents are shorter on average are joined; 0 for none")
        .bytes(at!(object.config.settings.upkeep.join_below_bytes as u64)).within(0, JOIN_BYTES_MAX as i128),
    ours("tierReadMemoryMB", "Memory for reading objects; a part of --memory-limit when it is not set")
        .mebibytes(at!(object.read_memory, if given)).within(16, MIB_MAX),
    ours("tierTrim", "Let local copies go of what is in object storage").switch(at!(object.trim.is_on)),
    ours("tierTrimGraceSec", "Local copies go this long after all of a ledger is in object storage")
        .seconds(
            Place::new(
                |draft, grace| draft.object.trim.set_grace(grace),
                |draft| Some(draft.object.trim.grace),
            )
            .flag("--tier-grace", |args| args.tier_grace),
        )
        .within(0, SECONDS_MAX),
    ours("tierTrimGraceShortSec", "The same while a disk is short of space")
        .seconds(at!(object.trim.grace_when_short)).within(0, SECONDS_MAX),
    ours("tierTrimIntervalSec", "Time between two rounds of that").seconds(at!(object.trim.interval)).within(1, 1_000_000),
    ours("tierLocalSizeMaxMB", "Entry logs that take more than this count as short of space; any size when it is not set")
        .mebibytes(at!(object.trim.local_bytes_max, if given)).within(1, 1 << 40),
    ours("tierFreeShareMin", "A disk with a smaller share free is short of space").share(Share::BelowOne, at!(object.trim.free_share_min)),
    ours("tierTrimSamples", "Blocks of each extent that are read back before local copies go; 0 for all")
        .number(Place::new(
            |draft, samples| draft.object.trim.samples = (samples > 0).then_some(samples as usize),
            |draft| Some(draft.object.trim.samples.unwrap_or(0) as i128),
        ))
        .within(0, 1_000_000),
    ours("tierTrimProperties", "Only ledgers with one of these properties, NAME=VALUE separated by commas; all when it is not set")
        .form(read_properties, |draft| {
            let pairs = draft.object.trim.properties.iter().map(|(name, value)| format!("{name}={value}"));
            Some(pairs.collect::<Vec<_>>().join(","))
        }),
];
