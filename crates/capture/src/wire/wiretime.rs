//! Parse times as text, exact to the nanosecond.

const SECOND: i64 = 1_000_000_000;

/// Return the nanoseconds of `12.345678`, `2010-05-04 12:13:14.345678`, `2010-05-04T12:13:14Z` or `12:13:14.345678`.
///
/// Digits after the ninth decimal are dropped. `None` if the text has none of these forms or is out of range.
#[must_use]
pub fn parse(text: &str) -> Option<i64> {
    let text = text.trim().trim_end_matches('Z').trim_end_matches(" UTC");
    let (date, time) = match text.split_once([' ', 'T']) {
        Some((date, time)) => (Some(date), time),
        None => (None, text),
    };
    let (whole, fraction) = time.split_once(['.', ',']).unwrap_or((time, ""));
    let nanos = parse_fraction(fraction)?;
    let day = match date {
        Some(date) => count_days(date)?.checked_mul(86_400)?,
        None => 0,
    };
    let negative = whole.starts_with('-');
    let seconds = if whole.contains(':') {
        let mut sum: i64 = 0;
        for part in whole.split(':') {
            sum = sum.checked_mul(60)?.checked_add(parse_digits(part)?)?;
        }
        sum
    } else {
        parse_digits(whole.trim_start_matches('-'))?
    };
    let total = day
        .checked_add(seconds)?
        .checked_mul(SECOND)?
        .checked_add(nanos)?;
    Some(if negative { -total } else { total })
}

fn parse_digits(text: &str) -> Option<i64> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
}

fn parse_fraction(fraction: &str) -> Option<i64> {
    if fraction.is_empty() {
        return Some(0);
    }
    parse_digits(&format!("{:0<9}", fraction.get(..fraction.len().min(9))?))
}

/// Return the days since 1970 of a Gregorian date (Hinnant, "chrono-compatible low-level date algorithms").
fn count_days(date: &str) -> Option<i64> {
    let mut parts = date.splitn(3, '-').map(parse_digits);
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || year > 9999 {
        return None;
    }
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn every_form_is_read_exactly() {
        assert_eq!(parse("0.000014"), Some(14_000));
        assert_eq!(parse("-1.5"), Some(-1_500_000_000));
        assert_eq!(parse("19.541665123999"), Some(19_541_665_123));
        assert_eq!(parse("1970-01-02 00:00:01.5"), Some(86_401_500_000_000));
        assert_eq!(
            parse("2010-05-04T12:13:14Z"),
            Some(1_272_975_194_000_000_000)
        );
        assert_eq!(parse("00:01:02.000000003"), Some(62_000_000_003));
        for bad in [
            "",
            "x",
            "1.x",
            "2010-13-01 00:00:00",
            "99999999999999999999",
            "1:2:x",
            "é.é",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
