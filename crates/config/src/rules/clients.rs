//! The parts of a bookie's process that are clients of bookies, the tierer and repair: their settings, and how they speak to bookies.

use super::{auth, tier};
use crate::bookie_security::{self, BookieSecurity};
use crate::repair::RepairRoleSettings;
use crate::sources::values::{Finding, Values};
use crate::table::Draft;
use crate::table::flags::BookieArgs;
use crate::table::recovery::{self, SWITCH};
use bindery_server::auth::Provider;

/// The tierer and repair, and how both speak to bookies.
pub(super) fn apply(args: &BookieArgs, file: &mut Values, draft: &mut Draft) {
    repair(file, &draft.repair);
    tier::apply(args, file, draft);
    let Draft { config, tier, repair, .. } = draft;
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
    if !has_tierer && !repair.is_asked && file.faults.len() > faults_before {
        repair.left_out = Some(leave_out_repair(file, faults_before));
        (repair.is_on, security) = (false, BookieSecurity::default());
    }
    let is_used = security.user.as_ref().is_some_and(bookie_security::User::is_of_jaas);
    if let Some((tier, true)) = tier {
        tier.security = security.clone();
    }
    config.has_repair = repair.is_on;
    draft.security = security;
    auth::check_jaas(args, file, draft, is_used);
}

/// Repair that nobody asked for must not keep a bookie from starting that serves well without it: what is wrong with the settings of its
/// client, the findings from `first` on, is said and returned, and the bookie does not repair.
fn leave_out_repair(file: &mut Values, first: usize) -> String {
    let faults = file.faults.split_off(first);
    let why: Vec<&str> = faults.iter().map(|fault| fault.text.as_str()).collect();
    let why = why.join("; ");
    let warnings = faults.into_iter().map(|fault| {
        let text = format!(
            "this bookie does not repair ledgers of the cluster, as it would by default: {}. {SWITCH}=false says that this is meant",
            fault.text
        );
        Finding { text, ..fault }
    });
    file.warnings.extend(warnings);
    why
}

/// Finds wrong values of repair's keys, and what its owner would not expect.
fn repair(file: &mut Values, repair: &RepairRoleSettings) {
    let is_of_it = |fault: &Finding| {
        let name = fault.key.as_deref().unwrap_or_default();
        name != SWITCH && recovery::KEYS.iter().any(|key| key.name == name)
    };
    if !repair.is_asked {
        let (of_it, others) = std::mem::take(&mut file.faults).into_iter().partition(is_of_it);
        file.faults = others;
        ignore_values(file, of_it, repair.is_on);
    }
    if repair.is_on && repair.work.auditor.delay.is_zero() {
        file.warn(
            "lostBookieRecoveryDelay",
            "lostBookieRecoveryDelay=0: all copies of a bookie that is away are replaced at once, also while it restarts. Remove the line \
             (15 minutes then), or give a time that is longer than a restart takes; bindery cluster repair delay 15m says it for a cluster \
             that has run with 0",
        );
    }
}

/// A line for repair that nobody asked for may have stood there for years without any effect, and must not keep a bookie from starting: the
/// value is ignored, which has its default, and that is said.
fn ignore_values(file: &mut Values, faults: Vec<Finding>, is_on: bool) {
    let effect = match is_on {
        true => "its default counts",
        false => "repair is off on this bookie",
    };
    let warnings = faults
        .into_iter()
        .map(|fault| Finding { text: format!("{}. The value is ignored: {effect}", fault.text), ..fault });
    file.warnings.extend(warnings);
}
