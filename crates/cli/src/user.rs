//! `bindery user`: lines of a file of users.

use crate::exit::{self, Failure};
use crate::output;
use crate::runtime;
use crate::signals;
use bindery_io::{Random, SystemRandom};
use bindery_sasl::Secret;
use bindery_server::auth::Roles;
use bindery_server::auth::verifier::{self, SALT_BYTES};
use clap::{Args, Subcommand};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use std::io::{BufRead, IsTerminal, stdin};
use tokio::signal::unix::{Signal, SignalKind};

/// A longer password is taken for a mistake, in bytes.
const PASSWORD_BYTES_MAX: usize = 1024;

#[derive(Debug, Args)]
pub struct UserArgs {
    #[command(subcommand)]
    pub command: UserCommand,
}

#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// Write a line for a file of users (usersFile): reads the password from standard input, or asks for it on a terminal
    Hash(HashArgs),
}

#[derive(Debug, Args)]
pub struct HashArgs {
    /// Name of the user
    #[arg(value_name = "NAME", value_parser = name)]
    pub name: String,
    /// Roles of the user: writer, reader, tier, admin, with commas between them
    #[arg(long, value_name = "ROLES", default_value = "writer,reader")]
    pub roles: Roles,
    /// Keep what the plugin sasl-plain needs, over TLS, and not what Java's clients need (DIGEST-MD5): nobody can log in with the
    /// line alone then
    #[arg(long)]
    pub plain: bool,
}

fn name(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty() && !text.starts_with('#') && !text.contains(char::is_whitespace);
    if is_name { Ok(text.to_owned()) } else { Err("a name has no blanks, and no # in front".to_owned()) }
}

/// Runs one of `bindery user`.
pub fn run(args: UserArgs) -> Result<(), Failure> {
    let UserCommand::Hash(args) = args.command;
    let secret = if stdin().is_terminal() { ask(&args.name)? } else { first_line(stdin().lock())? };
    output::write_all(format!("{}\n", line(&args, &secret, &SystemRandom)).as_bytes())
}

fn line(args: &HashArgs, secret: &Secret, random: &dyn Random) -> String {
    let verifier = match args.plain {
        false => verifier::digest_md5_of(&args.name, secret),
        true => {
            let mut salt = [0; SALT_BYTES];
            salt.chunks_mut(8)
                .for_each(|part| part.copy_from_slice(&random.next_u64().to_le_bytes()[..part.len()]));
            verifier::pbkdf2_of(secret, verifier::ITERATIONS_DEFAULT, &salt)
        }
    };
    format!("{} {} {verifier}", args.name, args.roles)
}

/// The password in the first line of `input`.
fn first_line(input: impl BufRead) -> Result<Secret, Failure> {
    let mut line = String::new();
    let failed = |error| Failure::new(format!("cannot read the password from standard input: {error}"));
    input.take(PASSWORD_BYTES_MAX as u64 + 2).read_line(&mut line).map_err(failed)?;
    let password = line.strip_suffix('\n').unwrap_or(&line);
    let password = password.strip_suffix('\r').unwrap_or(password);
    if password.is_empty() || password.len() > PASSWORD_BYTES_MAX || password.contains('\0') {
        return Err(Failure::usage(format!(
            "give the password in the first line of standard input, 1 to {PASSWORD_BYTES_MAX} bytes"
        )));
    }
    Ok(Secret::new(password))
}

/// Asks for the password twice, without showing it.
fn ask(name: &str) -> Result<Secret, Failure> {
    let first = ask_once(&format!("Password of {name}: "))?;
    let again = ask_once("Once more: ")?;
    if first.expose() == again.expose() {
        Ok(first)
    } else {
        Err(Failure::usage("these are two passwords; try again"))
    }
}

fn ask_once(prompt: &str) -> Result<Secret, Failure> {
    let failed = |error| Failure::new(format!("cannot ask for a password on this terminal: {error}"));
    let terminal = stdin();
    let before = tcgetattr(&terminal).map_err(failed)?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    // Before the echo goes: a signal that ended the process would leave the terminal without.
    let runtime = runtime::single()?;
    let mut signals = runtime.block_on(async { Signals::new() })?;
    output::say_part(prompt);
    tcsetattr(&terminal, OptionalActions::Flush, &silent).map_err(failed)?;
    let read = runtime.block_on(async {
        // It cannot be ended while the terminal says nothing; the process does not wait for it.
        let line = tokio::task::spawn_blocking(|| first_line(stdin().lock()));
        tokio::select! {
            line = line => line.map_err(Failure::new)?,
            signal = signals.next() => Err(Failure::with_code(exit::SIGNALLED + signal, "")),
        }
    });
    runtime.shutdown_background();
    tcsetattr(&terminal, OptionalActions::Flush, &before).map_err(failed)?;
    output::say("");
    read
}

/// The signals that end a process that waits for somebody.
struct Signals([(Signal, u8); 4]);

impl Signals {
    /// Takes the signals over. Call it inside a runtime.
    fn new() -> Result<Signals, Failure> {
        let catch = |kind: SignalKind| {
            let caught = signals::catch(kind);
            caught.map(|caught| (caught, kind.as_raw_value() as u8))
        };
        Ok(Signals([
            catch(SignalKind::interrupt())?,
            catch(SignalKind::quit())?,
            catch(SignalKind::terminate())?,
            catch(SignalKind::hangup())?,
        ]))
    }

    /// The number of the next one.
    async fn next(&mut self) -> u8 {
        let [(one, first), (two, second), (three, third), (four, fourth)] = &mut self.0;
        tokio::select! {
            _ = one.recv() => *first,
            _ = two.recv() => *second,
            _ = three.recv() => *third,
            _ = four.recv() => *fourth,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_io::SeededRandom;

    #[test]
    fn a_line_has_a_name_roles_and_a_verifier() {
        let mut args =
            HashArgs { name: "hd".to_owned(), roles: "reader,writer".parse().unwrap(), plain: false };
        let secret = Secret::new("tiger");
        let random = SeededRandom::new(1);
        let of_java = line(&args, &secret, &random);
        // MD5 of hd:bookkeeper:tiger
        assert_eq!(of_java, "hd writer,reader digest-md5:7957634445e6622e148e8736d188eee2");
        args.plain = true;
        let (first, second) = (line(&args, &secret, &random), line(&args, &secret, &random));
        assert!(
            first.starts_with("hd writer,reader pbkdf2-sha256:120000:") && !first.contains("tiger"),
            "{first}"
        );
        assert_ne!(first, second, "each has a salt of its own");
    }

    #[test]
    fn the_password_is_the_first_line() {
        let of = |text: &str| first_line(text.as_bytes()).map(|secret| secret.expose().to_owned()).ok();
        for (text, expected) in [
            ("tiger", Some("tiger")),
            ("tiger\nlion\n", Some("tiger")),
            (" a b \r\n", Some(" a b ")),
            ("", None),
            ("\n", None),
            ("a\0b\n", None),
        ] {
            assert_eq!(of(text).as_deref(), expected, "{text:?}");
        }
        assert!(
            of(&"x".repeat(PASSWORD_BYTES_MAX)).is_some()
                && of(&"x".repeat(PASSWORD_BYTES_MAX + 1)).is_none()
        );
    }
}
