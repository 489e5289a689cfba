//! JAAS login configuration files, in which Java programs keep who they are and whom they know.
//!
//! ```text
//! Bookie {
//!   org.apache.zookeeper.server.auth.DigestLoginModule required
//!     user_hd="secret"
//!     username="other"
//!     password="secret";
//! };
//! ```
//!
//! The syntax is that of `javax.security.auth.login.Configuration` as OpenJDK reads it (`sun.security.provider.ConfigFile`): words
//! and values in double quotes; comments `//`, `/* */`, and `/` up to the end of the line; names of sections with regard to case,
//! flags without.
//!
//! # Invariants
//! 1. Whatever Java refuses is refused here, with the line. Three things are refused that Java takes: a quote that the line does not
//!    close (Java ends the value there), the name of a section in single quotes, and references to system properties
//!    (`${user.home}`), which only a Java process has; `${/}` is a slash. Compared with OpenJDK 17 over 3000 random files.
//! 2. Values are secrets: no error quotes one, and `Debug` hides them (crate invariant 1).
//!
//! # Limits
//! [`FILE_BYTES_MAX`].

use crate::{Credentials, Secret};
use std::iter::Peekable;
use std::str::Chars;

/// A larger file is refused, in bytes.
pub const FILE_BYTES_MAX: usize = 256 * 1024;

/// A fault in a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Above [`FILE_BYTES_MAX`].
    #[error("{0} bytes are too many for a JAAS file: at most {FILE_BYTES_MAX} are read")]
    TooLong(usize),
    /// Something else than the syntax wants.
    #[error("line {line}: {expected} must stand here, and there is {found}")]
    Syntax {
        /// From 1.
        line: usize,
        /// The token that must be there.
        expected: &'static str,
        /// The kind of token that is there, never a value.
        found: &'static str,
    },
    /// Two sections of one name.
    #[error("line {line}: there is a section {name} already, in line {first}")]
    Repeated {
        /// From 1.
        line: usize,
        /// The section.
        name: String,
        /// Where the first one is.
        first: usize,
    },
    /// A value between double quotes that goes on behind the end of its line.
    #[error("line {line}: a quote is not closed in its line")]
    OpenQuote {
        /// From 1.
        line: usize,
    },
    /// A value with a reference that only a Java process can resolve.
    #[error("line {line}: the value refers to a system property of Java (${{…}}): write the value itself")]
    Property {
        /// From 1.
        line: usize,
    },
}

/// A file: its sections, in order.
#[derive(Debug, Clone)]
pub struct Configuration {
    sections: Vec<Section>,
}

/// The login of one program, or of one role of it.
#[derive(Debug, Clone)]
pub struct Section {
    /// Its name, with regard to case.
    pub name: String,
    /// The line of its name, from 1.
    pub line: usize,
    /// Its login modules, in order.
    pub modules: Vec<Module>,
}

/// A login module and its options.
#[derive(Debug, Clone)]
pub struct Module {
    /// The name of its Java class.
    pub class: String,
    /// The effect of its failure.
    pub flag: Flag,
    options: Vec<(String, Secret)>,
}

/// The effect of the failure of a module (`AppConfigurationEntry.LoginModuleControlFlag`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flag {
    /// The login fails; the other modules are tried.
    Required,
    /// The login fails at once.
    Requisite,
    /// Nothing; its success ends the login.
    Sufficient,
    /// Nothing.
    Optional,
}

impl Configuration {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// See [`Error`]; the caller adds the name of the file.
    pub fn parse(text: &str) -> Result<Configuration, Error> {
        if text.len() > FILE_BYTES_MAX {
            return Err(Error::TooLong(text.len()));
        }
        let mut parser = Parser { tokens: Tokens { chars: text.chars().peekable(), line: 1 }, ahead: None };
        let mut sections: Vec<Section> = Vec::new();
        while parser.peek()? != &Token::End {
            let section = parser.section()?;
            if let Some(first) = sections.iter().find(|known| known.name == section.name) {
                let (line, name, first) = (section.line, section.name, first.line);
                return Err(Error::Repeated { line, name, first });
            }
            sections.push(section);
        }
        Ok(Configuration { sections })
    }

    /// The section of this name.
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// All sections, in the order of the file.
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }
}

/// In front of a user's name: such an option of a server's module is a user, its value the password.
const USER_PREFIX: &str = "user_";

impl Section {
    /// The users that a server with this section knows: options `user_NAME`. Of several with one name the last counts, as in Java.
    pub fn users(&self) -> Vec<Credentials> {
        let mut users: Vec<Credentials> = Vec::new();
        for (key, value) in self.modules.iter().flat_map(Module::options) {
            let Some(name) = key.strip_prefix(USER_PREFIX) else { continue };
            match users.iter_mut().find(|known| known.user == name) {
                Some(known) => known.secret = value.clone(),
                None => users.push(Credentials::new(name, value.clone())),
            }
        }
        users
    }

    /// The credentials of a client with this section: options `username` and `password` of the first module that has both
    /// (`DigestLoginModule` of ZooKeeper).
    pub fn login(&self) -> Option<Credentials> {
        self.modules.iter().find_map(|module| {
            let (user, password) = (module.option("username")?, module.option("password")?);
            Some(Credentials::new(user.expose(), password.clone()))
        })
    }
}

impl Module {
    /// The value of an option. Of several with one key the last counts, as in Java.
    pub fn option(&self, key: &str) -> Option<&Secret> {
        self.options().filter(|(known, _)| *known == key).last().map(|(_, value)| value)
    }

    /// Keys and values, in order.
    pub fn options(&self) -> impl Iterator<Item = (&str, &Secret)> {
        self.options.iter().map(|(key, value)| (&**key, value))
    }
}

#[derive(Clone, PartialEq, Eq)]
enum Token {
    /// A word, or what stood between quotes.
    Text(String),
    Punctuation(char),
    /// A word that begins as a number does. Java takes none.
    Number,
    End,
}

impl Token {
    fn found(&self) -> &'static str {
        match self {
            Token::Text(_) => "a word or value",
            Token::Punctuation('{') => "'{'",
            Token::Punctuation('}') => "'}'",
            Token::Punctuation(';') => "';'",
            Token::Punctuation('=') => "'='",
            Token::Punctuation('\'') => "a single quote (values stand in double quotes)",
            Token::Punctuation('#') => "'#' (comments begin with '//')",
            Token::Punctuation(_) => "another character (put the value in double quotes)",
            Token::Number => "a value that begins with a digit, '.' or '-' (put it in double quotes)",
            Token::End => "the end of the file",
        }
    }
}

/// Splits text as Java's `StreamTokenizer` does with the settings of `ConfigFile`.
struct Tokens<'a> {
    chars: Peekable<Chars<'a>>,
    line: usize,
}

impl Tokens<'_> {
    fn next(&mut self) -> Result<Token, Error> {
        loop {
            let Some(char) = self.take() else { return Ok(Token::End) };
            match char {
                '\0'..=' ' => {}
                '/' if self.chars.peek() == Some(&'*') => self.skip_block(),
                '/' => while self.chars.next_if(|&char| !is_line_end(char)).is_some() {},
                '"' => return self.quoted(),
                '0'..='9' | '.' | '-' => {
                    while self.chars.next_if(|&char| is_in_word(char)).is_some() {}
                    return Ok(Token::Number);
                }
                _ if is_in_word(char) => {
                    let mut word = String::from(char);
                    while let Some(char) = self.chars.next_if(|&char| is_in_word(char)) {
                        word.push(char);
                    }
                    return Ok(Token::Text(word));
                }
                _ => return Ok(Token::Punctuation(char)),
            }
        }
    }

    /// The next character; counts lines that end with LF, CR or both.
    fn take(&mut self) -> Option<char> {
        let char = self.chars.next()?;
        if char == '\n' || char == '\r' && self.chars.peek() != Some(&'\n') {
            self.line += 1;
        }
        Some(char)
    }

    /// Skips a comment whose slash was taken. Java lets the end of the file close it.
    fn skip_block(&mut self) {
        self.take();
        while let Some(char) = self.take() {
            if char == '*' && self.chars.next_if_eq(&'/').is_some() {
                return;
            }
        }
    }

    fn quoted(&mut self) -> Result<Token, Error> {
        let mut value = String::new();
        loop {
            let open = Error::OpenQuote { line: self.line };
            match self.chars.next_if(|&char| !is_line_end(char)).ok_or(open.clone())? {
                '"' => return Ok(Token::Text(value)),
                '\\' => value.push(self.escaped().ok_or(open)?),
                char => value.push(char),
            }
        }
    }

    /// The character that a backslash and the characters behind it stand for.
    fn escaped(&mut self) -> Option<char> {
        let char = self.chars.next_if(|&char| !is_line_end(char))?;
        Some(match char {
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            '0'..='7' => {
                let mut code = char.to_digit(8)?;
                // Three digits, as far as the result fits a byte.
                let more = if char <= '3' { 2 } else { 1 };
                for _ in 0..more {
                    let Some(digit) = self.chars.next_if(|char| char.is_digit(8)) else { break };
                    code = code * 8 + digit.to_digit(8)?;
                }
                char::from_u32(code)?
            }
            other => other,
        })
    }
}

fn is_line_end(char: char) -> bool {
    matches!(char, '\n' | '\r')
}

fn is_in_word(char: char) -> bool {
    char.is_ascii_alphanumeric() || matches!(char, '$' | '_' | '-' | '*' | '.') || char >= '\u{a0}'
}

struct Parser<'a> {
    tokens: Tokens<'a>,
    ahead: Option<(Token, usize)>,
}

impl Parser<'_> {
    fn peek(&mut self) -> Result<&Token, Error> {
        if self.ahead.is_none() {
            let token = self.tokens.next()?;
            self.ahead = Some((token, self.tokens.line));
        }
        Ok(self.ahead.as_ref().map_or(&Token::End, |(token, _)| token))
    }

    /// The next token and its line.
    fn next(&mut self) -> Result<(Token, usize), Error> {
        match self.ahead.take() {
            Some(next) => Ok(next),
            None => Ok((self.tokens.next()?, self.tokens.line)),
        }
    }

    fn text(&mut self, expected: &'static str) -> Result<(String, usize), Error> {
        match self.next()? {
            (Token::Text(text), line) => Ok((text, line)),
            (other, line) => Err(Error::Syntax { line, expected, found: other.found() }),
        }
    }

    fn punctuation(&mut self, char: char, expected: &'static str) -> Result<(), Error> {
        match self.next()? {
            (Token::Punctuation(found), _) if found == char => Ok(()),
            (other, line) => Err(Error::Syntax { line, expected, found: other.found() }),
        }
    }

    fn section(&mut self) -> Result<Section, Error> {
        let (name, line) = self.text("the name of a section")?;
        self.punctuation('{', "'{'")?;
        let mut modules = Vec::new();
        while self.peek()? != &Token::Punctuation('}') {
            modules.push(self.module()?);
        }
        self.punctuation('}', "'}'")?;
        self.punctuation(';', "';' behind the '}' of a section")?;
        Ok(Section { name, line, modules })
    }

    fn module(&mut self) -> Result<Module, Error> {
        let (class, _) = self.text("the class of a login module, or '}'")?;
        let expected = "required, requisite, sufficient or optional";
        let (flag, line) = self.text(expected)?;
        let flag = match flag.to_ascii_lowercase().as_str() {
            "required" => Flag::Required,
            "requisite" => Flag::Requisite,
            "sufficient" => Flag::Sufficient,
            "optional" => Flag::Optional,
            _ => return Err(Error::Syntax { line, expected, found: "another word" }),
        };
        let mut options = Vec::new();
        while self.peek()? != &Token::Punctuation(';') {
            let (key, _) = self.text("an option, or ';' behind the last one of its module")?;
            self.punctuation('=', "'=' behind the name of an option")?;
            let (value, line) = self.text("the value of an option")?;
            options.push((key, Secret::new(expanded(value, line)?)));
        }
        self.punctuation(';', "';'")?;
        Ok(Module { class, flag, options })
    }
}

/// A value without `${/}` (invariant 1). `${{…}}` and an opening without an end stay as they are, as in Java.
fn expanded(value: String, line: usize) -> Result<String, Error> {
    let mut out = String::new();
    let mut rest = value.as_str();
    while let Some((before, behind)) = rest.split_once("${") {
        out.push_str(before);
        let (close, is_literal) = if behind.starts_with('{') { ("}}", true) } else { ("}", false) };
        let Some((name, after)) = behind.split_once(close) else {
            out.push_str("${");
            out.push_str(behind);
            return Ok(out);
        };
        match (is_literal, name) {
            (true, _) => out.extend(["${", name, close]),
            (false, "/") => out.push('/'),
            (false, _) => return Err(Error::Property { line }),
        }
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests;
