//! `bindery config check`.

use super::args::CheckArgs;
use crate::exit::Failure;
use crate::ledger::form;
use crate::output;
use bindery_config::settings::Examined;
use bindery_config::sources::values::{Finding, Place};
use bindery_server::tenants::rules::{Rules, RulesError};
use serde_json::json;

/// Prints all that can be said of a file; fails when a bookie would not start with it.
pub fn run(args: CheckArgs) -> Result<(), Failure> {
    let CheckArgs { file, json, run: mut bookie } = args;
    if bookie.config.is_some() {
        return Err(Failure::usage("config check takes one file: leave --config away"));
    }
    bookie.config = Some(file.clone());
    let mut examined = super::examine(&mut bookie)?;
    tenants(&mut examined);
    let file = file.display().to_string();
    let counts = [examined.faults.len(), examined.warnings.len(), examined.without_effect.len()];
    let mut findings: Vec<(&'static str, Finding)> = Vec::new();
    for (level, found) in [
        ("fault", examined.faults),
        ("warning", examined.warnings),
        ("note", examined.notes),
        ("note", examined.without_effect),
    ] {
        findings.extend(found.into_iter().map(|finding| (level, finding)));
    }
    findings.sort_by_key(|(_, finding)| match finding.place {
        Some(Place::Line(line)) => line,
        Some(Place::Variable(_)) => usize::MAX - 1,
        None => usize::MAX,
    });
    let mut text = Vec::new();
    for (level, finding) in &findings {
        text.extend(match json {
            true => form::line(&object(level, finding)),
            false => line(&file, level, finding).into_bytes(),
        });
    }
    output::write_all(&text)?;
    let [faults, warnings, without_effect] = counts;
    let summary = format!(
        "{file}: {}, {}, {} without effect",
        form::count(faults as u64, "fault", "faults"),
        form::count(warnings as u64, "warning", "warnings"),
        form::count(without_effect as u64, "setting", "settings"),
    );
    match faults {
        0 => output::say(summary),
        _ => return Err(Failure::usage(summary)),
    }
    Ok(())
}

/// The file of tenants is checked where it is; a bookie that is checked elsewhere may have another one.
fn tenants(examined: &mut Examined) {
    const KEY: &str = "tenantsFile";
    let Some(tenants) = &examined.draft.config.tenants else { return };
    let Err(error) = Rules::load(&tenants.file) else { return };
    let place = examined.draft.given.get(KEY).map(|given| given.place.clone());
    let finding = Finding { key: Some(KEY.to_owned()), place, text: error.to_string() };
    match error {
        RulesError::Read { .. } => examined.warnings.push(finding),
        RulesError::Content { .. } => examined.faults.push(finding),
    }
}

/// As compilers do it, so that editors find the place.
fn line(file: &str, level: &str, finding: &Finding) -> String {
    let text = &finding.text;
    match &finding.place {
        Some(Place::Line(line)) => format!("{file}:{line}: {level}: {text}\n"),
        Some(Place::Variable(name)) => format!("{name}: {level}: {text}\n"),
        None => format!("{file}: {level}: {text}\n"),
    }
}

fn object(level: &str, finding: &Finding) -> serde_json::Value {
    let (line, variable) = match &finding.place {
        Some(Place::Line(line)) => (Some(line), None),
        Some(Place::Variable(name)) => (None, Some(name)),
        None => (None, None),
    };
    json!({
        "level": level,
        "key": finding.key,
        "line": line,
        "variable": variable,
        "text": finding.text,
    })
}
