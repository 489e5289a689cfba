//! Protection that is configured and not switched on. BookKeeper ignores it without a word; here it is a fault, so that no bookie serves
//! in plain text while its operator believes it protected.

use crate::sources::environment::OPTIONS;
use crate::sources::values::{Place, Values, truth};
use crate::table::{self, Protection};

/// Finds settings of a protection that is off: the keys whose rows want it. A flag asks for it when it is true.
///
/// A fault, and a warning where the switch is off in so many words, or where all of them are options of a Java process: ZooKeeper's
/// server reads those as well.
pub(super) fn refuse_without(file: &mut Values, protection: &Protection) {
    let wanting = table::all().filter(|key| key.is_for(protection)).map(|key| key.name);
    refuse(file, protection, wanting);
}

fn refuse(file: &mut Values, protection: &Protection, wanting: impl Iterator<Item = &'static str>) {
    let asking: Vec<&str> = wanting.filter(|key| is_asked(file, key)).collect();
    let Some((first, others)) = asking.split_first() else { return };
    let others = match others.is_empty() {
        true => String::new(),
        false => format!(" (and {})", others.join(", ")),
    };
    let Protection { key, on, off, harm } = protection;
    let says_off = |off: &str| {
        file.given().get(*key).is_some_and(|given| given.text == off || truth(&given.text) == Some(false))
    };
    let is_meant = off.is_some_and(says_off);
    let remedy = match off {
        Some(off) if !is_meant => format!("give {key}={on}, or {key}={off} if it is meant to be off"),
        _ => format!("give {key}={on}, or remove what it switches on"),
    };
    let text = format!("{first}{others} without {key}={on}, which switches it on: {harm}; {remedy}");
    let are_of_java = asking.iter().all(|key| {
        let place = file.given().get(*key).map(|given| &given.place);
        matches!(place, Some(Place::Variable(name)) if OPTIONS.contains(&name.as_str()))
    });
    match is_meant || are_of_java {
        true => file.warn(first, text),
        false => file.fault(first, text),
    }
}

/// As in BookKeeper's sample file, "null" stands for none.
fn is_asked(file: &Values, key: &str) -> bool {
    let Some(given) = file.given().get(key) else { return false };
    !given.text.is_empty() && given.text != "null" && truth(&given.text) != Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::environment::Variable;

    const SWITCH: Protection = Protection { key: "lock", on: "true", off: Some("false"), harm: "it is open" };

    fn found(text: &str, variable: Option<(&str, &str)>) -> (usize, Vec<String>) {
        let mut file = Values::of(Some(text));
        let variable = variable.map(|(key, value)| Variable {
            key: key.to_owned(),
            name: "BOOKIE_EXTRA_OPTS".to_owned(),
            value: value.to_owned(),
        });
        file.overlay(variable.into_iter().collect());
        refuse(&mut file, &SWITCH, ["bolt", "key"].into_iter());
        let faults = file.faults.len();
        (faults, file.faults.into_iter().chain(file.warnings).map(|found| found.text).collect())
    }

    #[test]
    fn what_asks_for_protection_needs_its_switch() {
        for quiet in ["", "bolt=\nkey=null\n", "bolt=false\n", "bolt=no\n", "other=true\n"] {
            assert_eq!(found(quiet, None), (0, Vec::new()), "{quiet}");
        }
        let (faults, texts) = found("key=/k\nbolt=true\n", None);
        let text = "bolt (and key) without lock=true, which switches it on: it is open; give lock=true, or lock=false if it is meant \
                    to be off";
        assert_eq!((faults, texts), (1, vec![text.to_owned()]));
        let (faults, texts) = found("key=/k\nlock=false\n", None);
        assert_eq!((faults, texts.len()), (0, 1), "it is off in so many words: {texts:?}");
        assert!(texts[0].ends_with("give lock=true, or remove what it switches on"), "{texts:?}");
        let (faults, texts) = found("", Some(("key", "/k")));
        assert_eq!((faults, texts.len()), (0, 1), "an option of Java: {texts:?}");
        assert_eq!(
            found("bolt=true\n", Some(("key", "/k"))).0,
            1,
            "one of them is a setting of the bookie's"
        );
    }
}
