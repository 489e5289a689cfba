//! Object storage: all keys are ours.

use super::{Key, View, mebibytes, ours, seconds};
use bindery_reconciler::TiererConfig;
use bindery_server::tier::TrimConfig;

fn tierer(view: &View<'_>) -> TiererConfig {
    view.tier.map_or_else(TiererConfig::default, |(tier, _)| tier.config.clone())
}

fn trim(view: &View<'_>) -> TrimConfig {
    view.config.tier.as_ref().map_or_else(TrimConfig::default, |tier| tier.trim.clone())
}

pub(super) const KEYS: &[Key] = &[
    ours(
        "tierUrl",
        "The object store that ledgers are kept in: file:///DIR, s3://BUCKET/PREFIX, gs:// or az://",
    )
    .shown(|view| view.tier.map_or_else(String::new, |(tier, _)| tier.store.url().to_string()))
    .flag("--tier", |args| args.tier.is_some()),
    ours("tierRole", "Move ledgers there; false leaves it to others")
        .shown(|view| view.tier.is_none_or(|(_, has_role)| *has_role).to_string())
        .flag("--tier-role", |args| args.tier_role.is_some()),
    ours("tierTls", "Tierer and repair speak TLS with bookies; true by default with tlsProviderFactoryClass")
        .shown(|view| view.tier.is_some_and(|(tier, _)| tier.security.tls.is_some()).to_string()),
    ours("tierMemoryLimitMB", "Memory for moving ledgers")
        .unit("MB")
        .shown(|view| mebibytes(tierer(view).memory_limit)),
    ours("tierRateMB", "Bytes of ledgers read in a second; without limit when it is not set")
        .unit("MB")
        .shown(|view| tierer(view).bytes_per_second.map_or_else(String::new, mebibytes)),
    ours("tierObjectSizeMB", "Largest object; 5 to 4096")
        .unit("MB")
        .shown(|view| mebibytes(tierer(view).settings.object_bytes_max)),
    ours("tierUpdatesInFlight", "Requests to bookies under way; 1 to 1024")
        .shown(|view| tierer(view).settings.updates.in_flight_max.to_string()),
    ours("tierUpdateMode", "batched: tell a bookie of many ledgers at once; single: one by one").shown(
        |view| match tierer(view).settings.updates.mode {
            bindery_reconciler::core::updates::UpdateMode::Batched => "batched".to_owned(),
            bindery_reconciler::core::updates::UpdateMode::Single => "single".to_owned(),
        },
    ),
    ours("tierCompression", "Compression of objects: none or zstd").shown(|view| {
        match tierer(view).compression {
            bindery_tiering::object::Compression::None => "none".to_owned(),
            bindery_tiering::object::Compression::Zstd => "zstd".to_owned(),
        }
    }),
    ours("tierDeleteDelaySec", "Objects that nothing refers to are deleted after this time")
        .unit("s")
        .shown(|view| seconds(tierer(view).settings.upkeep.delete_delay)),
    ours("tierRewriteBelow", "Objects of which a smaller share is referred to are rewritten; 0 for none")
        .shown(|view| tierer(view).settings.upkeep.rewrite_below.to_string()),
    ours("tierReadMemoryMB", "Memory for reading objects; a part of --memory-limit when it is not set")
        .unit("MB")
        .shown(|view| {
            let bytes = view.config.tier.as_ref().and_then(|tier| tier.memory_bytes);
            bytes.map_or_else(String::new, mebibytes)
        }),
    ours("tierTrim", "Let local copies go of what is in object storage")
        .shown(|view| trim(view).is_on.to_string()),
    ours("tierTrimGraceSec", "They go this long after all of a ledger is there")
        .unit("s")
        .shown(|view| seconds(trim(view).grace))
        .flag("--tier-grace", |args| args.tier_grace.is_some()),
    ours("tierTrimGraceShortSec", "The same while a disk is short of space")
        .unit("s")
        .shown(|view| seconds(trim(view).grace_when_short)),
    ours("tierTrimIntervalSec", "Time between two rounds of that")
        .unit("s")
        .shown(|view| seconds(trim(view).interval)),
    ours(
        "tierLocalSizeMaxMB",
        "Entry logs that take more than this count as short of space; any size when it is not set",
    )
    .unit("MB")
    .shown(|view| trim(view).local_bytes_max.map_or_else(String::new, mebibytes)),
    ours("tierFreeShareMin", "A disk with a smaller share free is short of space")
        .shown(|view| trim(view).free_share_min.to_string()),
    ours("tierTrimSamples", "Blocks of each extent that are read back before local copies go; 0 for all")
        .shown(|view| trim(view).samples.unwrap_or(0).to_string()),
    ours(
        "tierTrimProperties",
        "Only ledgers with one of these properties, NAME=VALUE separated by commas; all when it is not set",
    )
    .shown(|view| {
        let pairs: Vec<String> =
            trim(view).properties.iter().map(|(name, value)| format!("{name}={value}")).collect();
        pairs.join(",")
    }),
];
