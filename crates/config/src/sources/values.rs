//! Values of the configuration file and the environment, as the settings take them, and the findings on the way.

use super::{conf_file, environment};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// Where a value stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// This line of the file, from 1.
    Line(usize),
    /// This variable of the environment.
    Variable(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(line) => write!(f, "line {line} of the configuration file"),
            Place::Variable(name) => write!(f, "{name} in the environment"),
        }
    }
}

/// A value as it was written, and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// The text.
    pub text: String,
    /// Its place.
    pub place: Place,
}

/// A fault, a warning or a note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The key it is about, if it is about one.
    pub key: Option<String>,
    /// The key's place, unless flags or their absence are at fault.
    pub place: Option<Place>,
    /// The problem, and the remedy.
    pub text: String,
}

impl From<String> for Finding {
    fn from(text: String) -> Finding {
        Finding { key: None, place: None, text }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            None => f.write_str(&self.text),
            Some(place) => write!(f, "{} ({place})", self.text),
        }
    }
}

/// Values, taken key by key. Keys that were never taken are left over, and can be named.
#[derive(Debug, Default)]
pub struct Values {
    left: BTreeMap<String, Given>,
    given: BTreeMap<String, Given>,
    asked: BTreeSet<String>,
    /// Findings that keep the bookie from starting.
    pub faults: Vec<Finding>,
    /// Findings that the operator would want to know.
    pub warnings: Vec<Finding>,
    /// How settings were understood.
    pub notes: Vec<Finding>,
}

impl Values {
    /// Those of a file, if there is one.
    pub fn of(text: Option<&str>) -> Values {
        let mut values = Values::default();
        let Some(text) = text else { return values };
        for (key, value) in conf_file::parse(text) {
            let given = Given { text: value.text, place: Place::Line(value.line) };
            values.given.insert(key, given);
        }
        values.left = values.given.clone();
        for (key, first, last) in conf_file::repeated(text) {
            values.warn(
                &key,
                format!(
                    "{key} stands on line {first} and again on line {last}, which counts here; BookKeeper takes the first: \
                     remove one"
                ),
            );
        }
        values
    }

    /// Variables of the environment take the place of what the file says.
    pub fn overlay(&mut self, variables: Vec<environment::Variable>) {
        for variable in variables {
            let given = Given { text: variable.value, place: Place::Variable(variable.name) };
            self.left.insert(variable.key.clone(), given.clone());
            self.given.insert(variable.key, given);
        }
    }

    /// Everything that was given, taken or not.
    pub fn given(&self) -> &BTreeMap<String, Given> {
        &self.given
    }

    /// The keys that some setting read.
    #[cfg(test)]
    pub fn asked(&self) -> &BTreeSet<String> {
        &self.asked
    }

    /// The values that no setting took.
    pub fn rest(&mut self) -> BTreeMap<String, Given> {
        std::mem::take(&mut self.left)
    }

    /// The value of a key, unless it is empty.
    pub fn take(&mut self, key: &str) -> Option<String> {
        self.asked.insert(key.to_owned());
        self.left.remove(key).map(|given| given.text).filter(|text| !text.is_empty())
    }

    /// True or false, in any of the words that Java takes.
    pub fn flag(&mut self, key: &str) -> Option<bool> {
        let value = self.take(key)?;
        let flag = truth(&value);
        if flag.is_none() {
            self.fault(key, format!("{key}={value}: give true or false"));
        }
        flag
    }

    fn finding(&self, key: &str, text: String) -> Finding {
        let place = self.given.get(key).map(|given| given.place.clone());
        Finding { key: Some(key.to_owned()), place, text }
    }

    /// The value of a key is wrong.
    pub fn fault(&mut self, key: &str, text: impl Into<String>) {
        let finding = self.finding(key, text.into());
        self.faults.push(finding);
    }

    /// The value of a key does not do what its reader may expect.
    pub fn warn(&mut self, key: &str, text: impl Into<String>) {
        let finding = self.finding(key, text.into());
        self.warnings.push(finding);
    }

    /// How the value of a key was understood.
    pub fn note(&mut self, key: &str, text: impl Into<String>) {
        let finding = self.finding(key, text.into());
        self.notes.push(finding);
    }
}

/// The words of Commons Configuration, which BookKeeper reads its file with.
pub fn truth(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "t" | "y" => Some(true),
        "false" | "no" | "off" | "f" | "n" => Some(false),
        _ => None,
    }
}

/// A directory or file of a setting from the root on.
pub fn absolute(dir: &Path, file: &mut Values) -> PathBuf {
    std::path::absolute(dir).unwrap_or_else(|error| {
        let text = format!("directory {:?} cannot be used: {error}", dir.display().to_string());
        file.faults.push(text.into());
        dir.to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_names_the_place_of_its_key() {
        let mut values = Values::of(Some("a=yes\n\nb=x\n"));
        let name = "BK_c".to_owned();
        values.overlay(vec![environment::Variable { key: "c".into(), name, value: "?".into() }]);
        assert_eq!((values.flag("a"), values.flag("b"), values.flag("c")), (Some(true), None, None));
        let faults: Vec<String> = values.faults.iter().map(Finding::to_string).collect();
        assert_eq!(
            faults,
            [
                "b=x: give true or false (line 3 of the configuration file)",
                "c=?: give true or false (BK_c in the environment)"
            ]
        );
    }

    #[test]
    fn truth_is_told_in_the_words_that_java_takes() {
        for (word, is_true) in [("true", true), ("TRUE", true), ("Yes", true), ("off", false), ("f", false)] {
            assert_eq!(truth(word), Some(is_true), "{word}");
        }
        assert_eq!(truth("1"), None);
    }
}
