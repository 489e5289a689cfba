//! docs/reference/configuration.md, made from the table of keys.

use super::explain::capital;
use bindery_config::table::{self, Key, Status};

const HEAD: &str = "# Keys of the configuration file

<!-- Made by `bindery config reference > docs/reference/configuration.md`; do not edit. -->

A bookie reads BookKeeper's `bk_server.conf` (`--config FILE`), or Pulsar's `bookkeeper.conf`. These are all keys of BookKeeper
4.17.2 and 4.18.0 and of Pulsar 4.0, and those that only Bindery has. `bindery config explain KEY` says the same of one key,
`bindery config check FILE` of a file; `bindery config show` prints the settings in force and where each comes from.

- **applied**: does what it does in BookKeeper.
- **translated**: does what its owner wants of it by other means; the text says how.
- **no effect**: there is nothing for it to do; the text says why. A bookie names such keys in one warning at its start.
- **refused**: a value that asks for something which is not here stops the start, because to ignore it would weaken a promise.
- **Bindery's own**: BookKeeper does not have it.

An empty value counts as none. A name that ends in `*` stands for all keys that begin so. Defaults are those of the code, which
differ from the sample file's in places; the first is ours, the second BookKeeper's.
";

/// The page.
pub fn page() -> String {
    let mut text = HEAD.to_owned();
    for part in table::PARTS {
        text.push_str(&format!(
            "\n## {}\n\n| key, unit | | default | BookKeeper | what it is |\n|---|---|---|---|---|\n",
            part.title
        ));
        for key in part.keys {
            text.push_str(&row(key));
        }
    }
    text
}

fn row(key: &Key) -> String {
    let code = |text: &str| if text.is_empty() { String::new() } else { format!("`{text}`") };
    let unit = if key.unit.is_empty() { String::new() } else { format!(", {}", key.unit) };
    let status = match key.status {
        Status::Ours => "own",
        _ => key.status.word(),
    };
    let mut about = format!("{}.", capital(key.about));
    if let Some(reason) = key.status.reason() {
        about.push_str(&format!(" {}.", capital(reason)));
    }
    if let Some(flag) = key.flag_name() {
        about.push_str(&format!(" `{flag}` wins."));
    }
    let about = about.replace('|', "\\|");
    format!("| `{}`{unit} | {status} | {} | {} | {about} |\n", key.name, code(&key.default()), code(key.java))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_committed_reference_is_current() {
        let committed = include_str!("../../../../docs/reference/configuration.md");
        assert!(
            committed == super::page(),
            "run: cargo run -p bindery-cli -- config reference > docs/reference/configuration.md"
        );
    }

    /// The guide says what to set, and leaves what it means to the reference.
    #[test]
    fn the_guide_names_only_keys_and_flags_that_exist() {
        let guide = include_str!("../../../../docs/guide/settings.md");
        let table = guide.split("## What to set for what").nth(1).unwrap().split("\n## ").next().unwrap();
        let command = crate::command_line::Cli::command();
        let bookie = command.find_subcommand("bookie").unwrap();
        let (mut keys, mut flags) = (0, 0);
        for code in table.split('`').skip(1).step_by(2) {
            let word = code.split(' ').next().unwrap();
            if let Some(flag) = word.strip_prefix("--") {
                assert!(bookie.get_arguments().any(|arg| arg.get_long() == Some(flag)), "{word}");
                flags += 1;
            } else if word.contains(char::is_uppercase) {
                let has_effect = bindery_config::table::find(word).is_some_and(|key| key.has_effect());
                assert!(has_effect, "{word} is no key that does anything");
                keys += 1;
            }
        }
        assert!(keys > 50 && flags > 15, "{keys} keys, {flags} flags");
    }
}
