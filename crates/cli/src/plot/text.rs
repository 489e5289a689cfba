//! A plot as text: a panel of one series as columns, one of several as marks.

use super::axis::{self, Axis};
use super::{Panel, Plot};
use crate::live::spark::Glyphs;

/// Lines of a panel.
const LINES: usize = 8;
/// The widest one.
const WIDTH_MAX: usize = 100;
/// Marks of the series, the first one's in front.
const MARKS: [char; 4] = ['o', '+', '^', '*'];
/// Columns of an axis.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// All panels, in lines of `columns` characters at most, but for labels that are wider.
pub fn text(plot: &Plot, columns: usize, glyphs: Glyphs) -> String {
    let axes: Vec<Axis> = plot.panels.iter().map(Axis::of).collect();
    let labels = axes.iter().flat_map(|axis| axis.ticks.iter().map(|tick| axis::number(*tick).len()));
    let label_width = labels.max().unwrap_or(0).max(6);
    let room = columns.saturating_sub(label_width + 3).clamp(10, WIDTH_MAX);
    let mut out = String::new();
    for (at, panel) in plot.panels.iter().enumerate() {
        out.push_str(if at > 0 { "\n" } else { "" });
        panel_text(panel, label_width, room, glyphs, &mut out);
    }
    out
}

fn panel_text(panel: &Panel, label_width: usize, room: usize, glyphs: Glyphs, out: &mut String) {
    let seconds = panel.seconds();
    let panel = panel.folded(room);
    let axis = Axis::of(&panel);
    let count = panel.seconds();
    // Few seconds are drawn wide, all of the same width.
    let each = (room / count.max(1)).clamp(1, 6);
    let width = each * count;
    let is_alone = panel.series.len() == 1;
    let names: Vec<String> =
        panel.series.iter().zip(MARKS).map(|(series, mark)| format!("{mark} {}", series.name)).collect();
    let names = if is_alone { String::new() } else { format!("   {}", names.join("  ")) };
    out.push_str(&format!("{:>label_width$}   {}{names}\n", "", panel.title));
    let mut grid = vec![vec![' '; width]; LINES];
    for (series, mark) in panel.series.iter().zip(MARKS).rev() {
        for (at, value) in series.values.iter().enumerate() {
            let Some(value) = value else { continue };
            let share = axis.share(*value);
            let cells = at * each..(at + 1) * each;
            match is_alone {
                true => {
                    let filled = column(*value, share, glyphs);
                    for (line, sign) in filled.into_iter().enumerate() {
                        grid[LINES - 1 - line][cells.clone()].fill(sign);
                    }
                }
                false => {
                    let line = (share * (LINES - 1) as f64).round() as usize;
                    grid[LINES - 1 - line][at * each + each / 2] = mark;
                }
            }
        }
    }
    let (rule, corner, tick_sign, line) = match glyphs {
        Glyphs::Blocks => ('│', '└', '┤', '─'),
        Glyphs::Ascii => ('|', '+', '+', '-'),
    };
    let mut labels = vec![None; LINES];
    for tick in axis.ticks.iter().rev() {
        let at = LINES - 1 - (axis.share(*tick) * (LINES - 1) as f64).round() as usize;
        labels[at] = Some(axis::number(*tick));
    }
    for (cells, label) in grid.iter().zip(&labels) {
        let sign = if label.is_some() { tick_sign } else { rule };
        let cells: String = cells.iter().collect();
        let row = format!("{:>label_width$} {sign}{cells}", label.as_deref().unwrap_or(""));
        out.push_str(row.trim_end());
        out.push('\n');
    }
    out.push_str(&format!("{:>label_width$} {corner}{}\n", "", String::from(line).repeat(width)));
    out.push_str(&format!("{:>label_width$}  {}\n", "", times(seconds, width, room)));
}

/// A column from below: whole signs, and a part of one at its top.
fn column(value: f64, share: f64, glyphs: Glyphs) -> Vec<char> {
    if value <= 0.0 {
        return Vec::new();
    }
    match glyphs {
        Glyphs::Blocks => {
            // A little is not nothing.
            let eighths = ((share * (LINES * 8) as f64).round() as usize).max(1);
            let mut signs = vec!['█'; eighths / 8];
            signs.extend((!eighths.is_multiple_of(8)).then(|| BLOCKS[eighths % 8]));
            signs
        }
        Glyphs::Ascii => vec!['#'; ((share * LINES as f64).round() as usize).max(1)],
    }
}

/// The line of seconds below a panel, no longer than there is `room`.
fn times(seconds: usize, width: usize, room: usize) -> String {
    let mut line = String::new();
    for tick in axis::seconds(seconds) {
        let at = (tick * width).checked_div(seconds).unwrap_or(0);
        let label = if tick == 0 { "0 s".to_owned() } else { tick.to_string() };
        let used = line.chars().count();
        // Labels keep a blank between them.
        if used == 0 || (at > used && at + label.len() <= room) {
            line.push_str(&" ".repeat(at - used));
            line.push_str(&label);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::super::examples::plot;
    use super::*;

    #[test]
    fn the_text_is_that_of_the_picture() {
        let drawn = text(&plot(), 80, Glyphs::Blocks) + &text(&plot(), 40, Glyphs::Ascii);
        assert_eq!(drawn, include_str!("../../tests/plot/plot.txt"), "tests/plot/plot.txt:\n{drawn}");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for columns in 30..120 {
            for line in text(&plot(), columns, Glyphs::Blocks).lines() {
                assert!(line.chars().count() <= columns.max(36), "{columns}: {line}");
            }
        }
    }

    #[test]
    fn a_run_without_a_value_is_drawn_empty() {
        let mut plot = plot();
        plot.panels.iter_mut().flat_map(|panel| &mut panel.series).for_each(|series| series.values.clear());
        assert!(text(&plot, 80, Glyphs::Blocks).contains("adds/s"));
    }
}
