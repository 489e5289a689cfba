//! Lines that fit a terminal: the least important columns and parts are left out, and no number is ever cut.

use std::fmt::Write as _;

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Its head.
    pub head: &'static str,
    /// At least this wide, so that it does not move from one look to the next.
    pub width: usize,
    /// The column with the highest number is left out first, one with 0 never.
    pub rank: u8,
    /// Words are aligned to the left, numbers to the right.
    pub is_text: bool,
}

impl Column {
    /// A column of numbers.
    pub const fn number(head: &'static str, width: usize, rank: u8) -> Column {
        Column { head, width, rank, is_text: false }
    }

    /// A column of words.
    pub const fn text(head: &'static str, width: usize, rank: u8) -> Column {
        Column { head, width, rank, is_text: true }
    }
}

/// The lines of a table, the heads first. If the last column is of words, only as many of them are shown as fit.
pub fn table(columns: &[Column], rows: &[Vec<String>], width: Option<usize>) -> Vec<String> {
    let widest = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let last = columns.iter().rposition(|column| column.is_text).filter(|at| at + 1 == columns.len());
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(at, column)| match Some(at) == last {
            // Its words may be left out.
            true => column.width.max(column.head.len()),
            false => widest(at).max(column.width).max(column.head.len()),
        })
        .collect();
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    let taken = |shown: &[usize]| shown.iter().map(|at| widths[*at] + 2).sum::<usize>().saturating_sub(2);
    while width.is_some_and(|width| taken(&shown) > width) {
        let least =
            shown.iter().copied().filter(|at| columns[*at].rank > 0).max_by_key(|at| columns[*at].rank);
        match least {
            Some(least) => shown.retain(|at| *at != least),
            None => break,
        }
    }
    let line = |cells: &dyn Fn(usize) -> String| {
        let mut line = String::new();
        for at in &shown {
            let (cell, cell_width) = (cells(*at), widths[*at]);
            let gap = if line.is_empty() { "" } else { "  " };
            let _ = match (columns[*at].is_text, Some(*at) == last) {
                (_, true) => {
                    let room = width.map(|width| width.saturating_sub(line.chars().count() + 2));
                    write!(line, "{gap}{}", words(&cell, room))
                }
                (true, false) => write!(line, "{gap}{cell:<cell_width$}"),
                (false, false) => write!(line, "{gap}{cell:>cell_width$}"),
            };
        }
        line.trim_end().to_owned()
    };
    let mut lines = vec![line(&|at| columns[at].head.to_owned())];
    lines.extend(rows.iter().map(|row| line(&|at| row[at].clone())));
    lines
}

/// The first parts, as many as fit; at least one.
pub fn parts(parts: &[String], between: &str, width: Option<usize>) -> String {
    let mut line = String::new();
    for part in parts {
        let gap = if line.is_empty() { "" } else { between };
        let taken = line.chars().count() + gap.len() + part.chars().count();
        if !line.is_empty() && width.is_some_and(|width| taken > width) {
            break;
        }
        line.push_str(gap);
        line.push_str(part);
    }
    line
}

/// The first words of a text, as many as fit, and an ellipsis if there are more. `width` is in characters; `None` is no limit.
pub fn words(text: &str, width: Option<usize>) -> String {
    let Some(width) = width.filter(|width| text.chars().count() > *width) else { return text.to_owned() };
    let mut shown = String::new();
    for word in text.split(' ') {
        // One for the blank, one for the sign.
        if shown.chars().count() + word.chars().count() + 2 > width {
            break;
        }
        shown.push_str(if shown.is_empty() { "" } else { " " });
        shown.push_str(word);
    }
    if width > 0 {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column::text("PEER", 4, 0),
        Column::number("HELD", 4, 0),
        Column::number("ADDS", 4, 1),
        Column::text("STATE", 5, 0),
    ];

    fn rows() -> Vec<Vec<String>> {
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        vec![row(["10.0.0.1:1", "123456", "7", "stalled for 13 s"]), row(["a", "1", "22222", ""])]
    }

    #[test]
    fn numbers_are_whole_or_not_there() {
        let whole = table(&COLUMNS, &rows(), None);
        assert_eq!(whole[0], "PEER          HELD   ADDS  STATE");
        assert_eq!(whole[1], "10.0.0.1:1  123456      7  stalled for 13 s");
        assert_eq!(whole[2], "a                1  22222");
        let narrow = table(&COLUMNS, &rows(), Some(32));
        assert_eq!(narrow[0], "PEER          HELD   ADDS  STATE");
        assert_eq!(narrow[1], "10.0.0.1:1  123456      7  …", "the words do not fit");
        let narrower = table(&COLUMNS, &rows(), Some(31));
        assert_eq!(narrower[1], "10.0.0.1:1  123456  stalled…");
        for width in 0..60 {
            for line in table(&COLUMNS, &rows(), Some(width)) {
                assert!(line.chars().count() <= width.max(25), "{width}: {line}");
                let numbers = line.split_whitespace().filter(|word| word.bytes().all(|c| c.is_ascii_digit()));
                assert!(numbers.clone().all(|n| ["123456", "7", "1", "22222", "13"].contains(&n)), "{line}");
            }
        }
    }

    #[test]
    fn parts_and_words_go_from_the_end() {
        let three = ["one 1", "two 22", "three 333"].map(str::to_owned);
        assert_eq!(parts(&three, ", ", None), "one 1, two 22, three 333");
        assert_eq!(parts(&three, ", ", Some(23)), "one 1, two 22");
        assert_eq!(parts(&three, ", ", Some(3)), "one 1", "the first one stays");
        assert_eq!(words("took nothing for 13 s", Some(16)), "took nothing…");
        assert_eq!(words("took nothing", Some(12)), "took nothing");
        assert_eq!(words("took", Some(0)), "");
    }
}
