//! The terminal while a command is live: another screen, keys one by one, everything as before at the end.

use crate::exit::Failure;
use crate::output;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use std::io::{IsTerminal, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use tokio::sync::mpsc;

/// Keys that wait to be handled; more are dropped.
const KEYS_MAX: usize = 8;
/// Other screen, no cursor.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
/// The reverse of [`ENTER`].
const LEAVE: &[u8] = b"\x1b[?25h\x1b[?1049l";

/// A key that was pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// `q`.
    Quit,
    /// `s`.
    Sort,
    /// Anything else: look again now.
    Other,
}

impl Key {
    fn of(byte: u8) -> Key {
        match byte {
            // Control-C comes as a signal; control-D is the end of the input.
            b'q' | b'Q' | 4 => Key::Quit,
            b's' | b'S' => Key::Sort,
            _ => Key::Other,
        }
    }
}

/// See the module. Dropping it brings the terminal back.
pub struct Screen {
    before: Termios,
    keys: mpsc::Receiver<Key>,
    is_over: Arc<AtomicBool>,
    /// Reads keys, for a tenth of a second at a time.
    reader: Option<JoinHandle<()>>,
}

impl Screen {
    /// Whether there is a terminal to draw on and to be asked by.
    pub fn is_possible() -> bool {
        stdin().is_terminal() && stdout().is_terminal()
    }

    /// Takes the terminal over.
    pub fn enter() -> Result<Screen, Failure> {
        let failed = |error: std::io::Error| {
            Failure::new(format!("cannot use this terminal: {error}; --once needs none"))
        };
        let before = tcgetattr(stdin()).map_err(|error| failed(error.into()))?;
        let mut key_by_key = before.clone();
        key_by_key.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        // A read ends after a tenth of a second, with a key or without.
        key_by_key.special_codes[SpecialCodeIndex::VMIN] = 0;
        key_by_key.special_codes[SpecialCodeIndex::VTIME] = 1;
        tcsetattr(stdin(), OptionalActions::Now, &key_by_key).map_err(|error| failed(error.into()))?;
        let (pressed, keys) = mpsc::channel(KEYS_MAX);
        // From here on a drop brings it back.
        let mut screen = Screen { before, keys, is_over: Arc::default(), reader: None };
        let is_over = screen.is_over.clone();
        let reader = std::thread::Builder::new().name("bindery-keys".to_owned());
        screen.reader = Some(reader.spawn(move || read_keys(&pressed, &is_over)).map_err(failed)?);
        restore_in_a_panic(&screen.before);
        output::write_all(ENTER)?;
        Ok(screen)
    }

    /// Columns and lines.
    pub fn size(&self) -> (u16, u16) {
        match tcgetwinsize(stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
            _ => (80, 24),
        }
    }

    /// Draws as many lines of the text as there is room for.
    pub fn draw_page(&self, text: &str) -> Result<(), Failure> {
        let (_, lines) = self.size();
        let shown: Vec<&str> = text.lines().take(usize::from(lines)).collect();
        self.draw(&shown.join("\n"))
    }

    /// Shows `text`, which is no longer than the screen, in place of what was there, without flicker.
    pub fn draw(&self, text: &str) -> Result<(), Failure> {
        let mut bytes = b"\x1b[H".to_vec();
        for (at, line) in text.lines().enumerate() {
            // Between lines only: behind the last one of a full screen it would scroll.
            bytes.extend_from_slice(if at == 0 { b"" } else { b"\r\n" });
            bytes.extend_from_slice(line.as_bytes());
            bytes.extend_from_slice(b"\x1b[K");
        }
        bytes.extend_from_slice(b"\x1b[J");
        output::write_all(&bytes)
    }

    /// The next key. Cancel safe.
    pub async fn key(&mut self) -> Key {
        // Without a reader there is no terminal any more.
        self.keys.recv().await.unwrap_or(Key::Quit)
    }
}

fn read_keys(pressed: &mpsc::Sender<Key>, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Acquire) {
        let mut byte = [0];
        match rustix::io::read(stdin(), &mut byte) {
            Ok(1..) => drop(pressed.try_send(Key::of(byte[0]))),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            // The terminal went away.
            Err(_) => return,
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(reader) = self.reader.take() {
            // A panic there has been said already.
            let _ = reader.join();
        }
        restore(&self.before);
        IS_TAKEN.store(false, Ordering::Release);
    }
}

/// A screen is on the terminal.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

fn restore(before: &Termios) {
    // Nothing is left to be done when the terminal is gone.
    let _ = output::write_all(LEAVE);
    let _ = tcsetattr(stdin(), OptionalActions::Now, before);
}

/// A release build ends in a panic without any drop: the terminal is brought back before the panic is said.
fn restore_in_a_panic(before: &Termios) {
    IS_TAKEN.store(true, Ordering::Release);
    let (before, said) = (before.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        if IS_TAKEN.swap(false, Ordering::AcqRel) {
            restore(&before);
        }
        said(panic);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_the_last_line() {
        assert_eq!([b'q', b's', b'x', 4].map(Key::of), [Key::Quit, Key::Sort, Key::Other, Key::Quit]);
    }
}
