//! The parts of a bookie's process that are clients of bookies, the tierer and repair: their settings, and how they speak to bookies.

use crate::args::{BookieArgs, Switch};
use crate::auth_settings;
use crate::bookie_security::{self, BookieSecurity};
use crate::repair::{BYTES_PER_SECOND_DEFAULT, RepairRoleSettings};
use crate::sources::values::{Finding, Values};
use crate::tier_role::{self, TierSettings};
use bindery_repair::CheckSettings;
use bindery_server::auth::Provider;
use bindery_server::config::BookieConfig;
use std::time::Duration;

/// The key that repair in the bookie is switched with.
const REPAIR: &str = "autoRecoveryDaemonEnabled";

/// The tierer, and whether this process has one; repair, and how it speaks to bookies.
pub(super) fn apply(
    args: &BookieArgs,
    file: &mut Values,
    config: &mut BookieConfig,
) -> (Option<(TierSettings, bool)>, (RepairRoleSettings, BookieSecurity)) {
    let (mut repair, is_asked) = repair(args, file);
    let mut tier = tier_role::settings::of_bookie(args, file, config);
    let has_tierer = matches!(tier, Some((_, true)));
    let asks_for_users =
        config.auth.as_ref().is_some_and(|auth| matches!(auth.provider, Provider::Sasl { .. }));
    let faults_before = file.faults.len();
    let has_client = has_tierer || repair.is_on;
    let mut security = bookie_security::keys::of_bookie(file, config.tls.as_ref(), has_client);
    if has_tierer && asks_for_users && security.user.is_none() {
        file.faults.push(
            "clients have to log in (bookieAuthProviderFactoryClass, usersFile), and the tierer of this process has no user, so no \
             bookie would serve it: give saslUser and saslPasswordFile, a user with the roles writer, reader and tier; or \
             tierRole=false (--tier-role off), which keeps reading from the store"
                .to_owned()
                .into(),
        );
    }
    if repair.is_on && !has_tierer && asks_for_users && security.user.is_none() {
        file.faults.push(
            "clients have to log in (bookieAuthProviderFactoryClass, usersFile), and the replication worker of this process \
             (autoRecoveryDaemonEnabled) has no user, so no bookie would serve it: give saslUser and saslPasswordFile, a user with the \
             roles writer and reader; or autoRecoveryDaemonEnabled=false (--repair-role off)"
                .to_owned()
                .into(),
        );
    }
    if !has_tierer && !is_asked && file.faults.len() > faults_before {
        repair.left_out = Some(leave_out_repair(file, faults_before));
        (repair.is_on, security) = (false, BookieSecurity::default());
    }
    let is_used = security.user.as_ref().is_some_and(bookie_security::User::is_of_jaas);
    let zookeeper = config.metadata_security.sasl.as_ref();
    auth_settings::check_jaas(args, file, config.auth.as_ref(), zookeeper, is_used);
    if let Some((tier, true)) = &mut tier {
        tier.security = security.clone();
    }
    config.has_repair = repair.is_on;
    (tier, (repair, security))
}

/// Repair that nobody asked for must not keep a bookie from starting that serves well without it: what is wrong with the settings of its
/// client, the findings from `first` on, is said and returned, and the bookie does not repair.
fn leave_out_repair(file: &mut Values, first: usize) -> String {
    let faults = file.faults.split_off(first);
    let why: Vec<&str> = faults.iter().map(|fault| fault.text.as_str()).collect();
    let why = why.join("; ");
    let warnings = faults.into_iter().map(|fault| {
        let text = format!(
            "this bookie does not repair ledgers of the cluster, as it would by default: {}. {REPAIR}=false says that this is meant",
            fault.text
        );
        Finding { text, ..fault }
    });
    file.warnings.extend(warnings);
    why
}

/// Settings of the bookie's auditor and replication worker, and whether the operator switched them on explicitly.
fn repair(args: &BookieArgs, file: &mut Values) -> (RepairRoleSettings, bool) {
    let of_file = file.flag(REPAIR);
    let asked = args.repair_role.map(|switch| switch == Switch::On).or(of_file);
    let is_on = asked.unwrap_or(true);
    let faults_before = file.faults.len();
    let seconds = |value: Option<u32>| value.map(|value| Duration::from_secs(value.into()));
    let lost_after = seconds(file.parsed::<u32>("lostBookieRecoveryDelay"));
    if is_on && lost_after == Some(Duration::ZERO) {
        file.warn(
            "lostBookieRecoveryDelay",
            "lostBookieRecoveryDelay=0: all copies of a bookie that is away are replaced at once, also while it restarts. Remove the line \
             (15 minutes then), or give a time that is longer than a restart takes; bindery cluster repair delay 15m says it for a cluster \
             that has run with 0",
        );
    }
    let scan_interval = file.parsed("auditorPeriodicBookieCheckInterval");
    // No process lives for so long.
    let scan_interval = scan_interval.map(|every| interval(every).unwrap_or(INTERVAL_MAX));
    let open_grace = file.parsed::<u32>("openLedgerRereplicationGracePeriod");
    let open_grace = open_grace.map(|grace| Duration::from_millis(grace.into()));
    let settings = RepairRoleSettings {
        is_on,
        left_out: None,
        lost_after,
        scan_interval,
        open_grace,
        bytes_per_second: bytes_per_second(file),
        checks: checks(file),
        stamps_marks: file.flag("storeSystemTimeAsLedgerUnderreplicatedMarkTime"),
        mark_grace: file.parsed("underreplicatedLedgerRecoveryGracePeriod").and_then(interval),
    };
    if asked != Some(true) {
        ignore_values(file, faults_before, is_on);
    }
    (settings, asked == Some(true))
}

/// A line for repair that nobody asked for may have stood there for years without any effect, and must not keep a bookie from starting: the
/// value is ignored, which has its default, and that is said of the findings from `first` on.
fn ignore_values(file: &mut Values, first: usize, is_on: bool) {
    let faults = file.faults.split_off(first);
    let effect = match is_on {
        true => "its default counts",
        false => "repair is off on this bookie",
    };
    let warnings = faults
        .into_iter()
        .map(|fault| Finding { text: format!("{}. The value is ignored: {effect}", fault.text), ..fault });
    file.warnings.extend(warnings);
}

/// Bytes copied in a second; `None` for no limit.
fn bytes_per_second(file: &mut Values) -> Option<u64> {
    let name = "replicationRateByBytes";
    let Some(text) = file.take(name) else { return Some(BYTES_PER_SECOND_DEFAULT) };
    match text.parse::<i64>() {
        // Java takes what is not above zero for no limit.
        Ok(rate) => u64::try_from(rate).ok().filter(|rate| *rate > 0),
        Err(_) => {
            file.fault(name, format!("{name}={text}: give a whole number, or -1 for no limit"));
            Some(BYTES_PER_SECOND_DEFAULT)
        }
    }
}

/// The longest interval.
const INTERVAL_MAX: Duration = Duration::from_secs(u32::MAX as u64);

/// A time in seconds, of which Java takes what is not above zero for never: `None`.
fn interval(seconds: i64) -> Option<Duration> {
    let seconds = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0)?;
    Some(Duration::from_secs(seconds).min(INTERVAL_MAX))
}

/// Ledgers that are checked at once, however many the file allows: Java's default.
const CHECKED_AT_ONCE_MAX: u32 = 500;

/// The periodic checks of the bookie's auditor.
fn checks(file: &mut Values) -> CheckSettings {
    let mut checks = CheckSettings::default();
    if let Some(every) = file.parsed("auditorPeriodicCheckInterval") {
        checks.interval = interval(every);
    }
    if let Some(every) = file.parsed("auditorReplicasCheckInterval").and_then(interval) {
        checks.covers_replicas = true;
        checks.interval = Some(checks.interval.map_or(every, |interval| interval.min(every)));
    }
    if let Some(percent) = file.parsed::<u32>("auditorLedgerVerificationPercentage") {
        match percent {
            0..=100 => checks.read_percent = percent,
            _ => {
                let name = "auditorLedgerVerificationPercentage";
                file.fault(name, format!("{name}={percent}: give a whole number from 0 to 100"));
            }
        }
    }
    if let Some(most) = file.parsed::<u32>("auditorMaxNumberOfConcurrentOpenLedgerOperations") {
        checks.parallel = most.clamp(1, CHECKED_AT_ONCE_MAX) as usize;
    }
    checks
}
