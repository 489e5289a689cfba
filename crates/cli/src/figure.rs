//! Figures for people.

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time for people, in seconds.
pub fn span(seconds: f64) -> String {
    match seconds {
        some if some < 120.0 => format!("{some:.0} s"),
        long if long < 7200.0 => format!("{:.0} min", long / 60.0),
        long if long < 172_800.0 => format!("{:.1} h", long / 3600.0),
        long => format!("{:.1} days", long / 86_400.0),
    }
}

/// A size for people: whole bytes below 1 KiB, then one decimal in KiB (1,024 bytes) up to PiB.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}
