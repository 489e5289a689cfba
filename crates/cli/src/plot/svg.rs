//! A plot as SVG: one file without anything around it, for light and dark pages.

use super::axis::{self, Axis};
use super::{Panel, Plot};
use crate::printable::within_line;
use std::fmt::Write as _;

/// Width of the picture, and of what is drawn in it.
const WIDTH: f64 = 800.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
/// Height of a panel's drawing, and what stands above and below it.
const HEIGHT: f64 = 180.0;
const ABOVE: f64 = 44.0;
const BELOW: f64 = 40.0;
/// Of a line of the head.
const LINE: f64 = 18.0;
/// More would not be seen.
const POINTS_MAX: usize = 720;

/// Plain colours, for not every viewer knows variables.
const STYLE: &str = "\
text { font: 12px system-ui, Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 16px; font-weight: 600 } .panel { font-weight: 600 } .end { text-anchor: end } .middle { text-anchor: middle }
.page { fill: #ffffff } .faint { fill: #59636e } .grid { stroke: #d8dee4 }
polyline { fill: none; stroke-width: 2; stroke-linejoin: round }
polyline.s0 { stroke: #0969da } polyline.s1 { stroke: #bc4c00 } polyline.s2 { stroke: #8250df } polyline.s3 { stroke: #1a7f37 }
circle.s0 { fill: #0969da } circle.s1 { fill: #bc4c00 } circle.s2 { fill: #8250df } circle.s3 { fill: #1a7f37 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .page { fill: #0d1117 } .faint { fill: #9198a1 } .grid { stroke: #30363d }
polyline.s0 { stroke: #58a6ff } polyline.s1 { stroke: #f0883e } polyline.s2 { stroke: #bc8cff } polyline.s3 { stroke: #3fb950 }
circle.s0 { fill: #58a6ff } circle.s1 { fill: #f0883e } circle.s2 { fill: #bc8cff } circle.s3 { fill: #3fb950 }
}
";

/// The whole file.
pub fn svg(plot: &Plot) -> String {
    let head = 34.0 + plot.about.len() as f64 * LINE;
    let height = head + plot.panels.len() as f64 * (ABOVE + HEIGHT + BELOW);
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">"
    );
    let title = escaped(&plot.title);
    let _ = writeln!(out, "<title>{title}</title>");
    let about: Vec<String> = plot.about.iter().map(|line| escaped(line)).collect();
    let _ = writeln!(out, "<desc>{}</desc>", about.join("; "));
    let _ = write!(out, "<style>\n{STYLE}</style>\n");
    let _ = writeln!(out, "<rect class=\"page\" width=\"100%\" height=\"100%\"/>");
    let _ = writeln!(out, "<text class=\"title\" x=\"20\" y=\"26\">{title}</text>");
    for (at, line) in about.iter().enumerate() {
        let y = 26.0 + (at + 1) as f64 * LINE;
        let _ = writeln!(out, "<text class=\"faint\" x=\"20\" y=\"{y}\">{line}</text>");
    }
    for (at, panel) in plot.panels.iter().enumerate() {
        draw(panel, head + at as f64 * (ABOVE + HEIGHT + BELOW) + ABOVE, &mut out);
    }
    out.push_str("</svg>\n");
    out
}

/// A panel whose drawing begins at `top`.
fn draw(panel: &Panel, top: f64, out: &mut String) {
    let (right, bottom) = (WIDTH - RIGHT, top + HEIGHT);
    let seconds = panel.seconds();
    let panel = panel.folded(POINTS_MAX);
    let axis = Axis::of(&panel);
    let y = |value: f64| bottom - axis.share(value) * HEIGHT;
    let _ =
        writeln!(out, "<text class=\"panel\" x=\"20\" y=\"{}\">{}</text>", top - 16.0, escaped(panel.title));
    if panel.series.len() > 1 {
        for (at, series) in panel.series.iter().enumerate() {
            let x = right - (panel.series.len() - at) as f64 * 70.0;
            let _ = writeln!(
                out,
                "<circle class=\"s{at}\" cx=\"{x}\" cy=\"{}\" r=\"4\"/><text x=\"{}\" y=\"{}\">{}</text>",
                top - 20.0,
                x + 9.0,
                top - 16.0,
                escaped(series.name)
            );
        }
    }
    for tick in &axis.ticks {
        let at = y(*tick);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\"/><text class=\"faint end\" x=\"{}\" y=\"{:.1}\">{}</text>",
            LEFT - 8.0,
            at + 4.0,
            axis::number(*tick)
        );
    }
    for tick in axis::seconds(seconds) {
        let x = LEFT + (right - LEFT) * tick as f64 / seconds.max(1) as f64;
        let _ = writeln!(
            out,
            "<text class=\"faint middle\" x=\"{x:.1}\" y=\"{}\">{tick} s</text>",
            bottom + 18.0
        );
    }
    for (at, series) in panel.series.iter().enumerate() {
        lines(&series.values, at, right, y, out);
    }
}

/// A line for each run of values; a value between gaps is a point.
fn lines(values: &[Option<f64>], series: usize, right: f64, y: impl Fn(f64) -> f64, out: &mut String) {
    let x = |at: usize| LEFT + (right - LEFT) * (at as f64 + 0.5) / values.len() as f64;
    let mut run: Vec<String> = Vec::new();
    for (at, value) in values.iter().chain([&None]).enumerate() {
        if let Some(value) = value {
            run.push(format!("{:.1},{:.1}", x(at), y(*value)));
            continue;
        }
        match &run[..] {
            [] => {}
            [point] => {
                let (cx, cy) = point.split_once(',').unwrap_or_default();
                let _ = writeln!(out, "<circle class=\"s{series}\" cx=\"{cx}\" cy=\"{cy}\" r=\"2\"/>");
            }
            points => {
                let _ = writeln!(out, "<polyline class=\"s{series}\" points=\"{}\"/>", points.join(" "));
            }
        }
        run.clear();
    }
}

/// Text that markup holds, of characters that print.
fn escaped(text: &str) -> String {
    let text = within_line(text);
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::examples::plot;
    use super::*;

    #[test]
    fn the_picture_is_that_of_the_file() {
        let drawn = svg(&plot());
        assert_eq!(drawn, include_str!("../../tests/plot/plot.svg"), "tests/plot/plot.svg:\n{drawn}");
        // Nothing from elsewhere, and no text that is markup.
        assert!(!drawn.contains("href") && !drawn.contains("url(") && !drawn.contains("<script"), "{drawn}");
        assert!(drawn.contains("bench add &lt;&amp;&quot;x&quot;&gt;"), "{drawn}");
    }

    #[test]
    fn a_gap_parts_the_line() {
        let mut out = String::new();
        lines(&[Some(1.0), Some(1.0), None, Some(1.0)], 1, 780.0, |value| value, &mut out);
        assert_eq!(out.matches("<polyline").count(), 1, "{out}");
        assert_eq!(out.matches("<circle").count(), 1, "{out}");
    }
}
