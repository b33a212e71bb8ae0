//! Compare the clocks of two points by packets captured at both: offset and skew.
//!
//! A packet's times at two points differ by its delay and the difference of the clocks. The shortest delays of a
//! direction lie on a line whose slope is the skew: the edge of the lower convex hull of all differences that lies in
//! the middle of the time (Moon, Skelly, Towsley: Estimation and Removal of Clock Skew from Network Delay Measurements,
//! INFOCOM 1999). Both directions together give the offset, to within half of the sum of the shortest delays there and
//! back: no clock shows how that sum is divided between the two directions.

use serde::Serialize;

/// In shorter captures, a skew cannot be distinguished from varying delays.
const LONG: i64 = 2_000_000_000;

/// The second clock compared with the first one.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Clock {
    /// By how many seconds the second clock is ahead in the middle of the common time.
    pub offset_s: f64,
    /// Largest possible error of the offset, assuming that the shortest delays are not negative.
    pub offset_error_s: f64,
    /// Seconds that the second clock gains each second; 0 if the skew cannot be distinguished from zero.
    pub skew: f64,
    /// Possible error of the skew.
    pub skew_error: f64,
    /// The time at which the offset holds, in nanoseconds of the first clock.
    #[serde(skip)]
    middle: i64,
}

impl Clock {
    /// Convert `ts` of the second clock to the first clock's time.
    #[must_use]
    pub fn back(&self, ts: i64) -> i64 {
        let near = ts - (self.offset_s * 1e9).round() as i64;
        let since = (near - self.middle) as f64;
        near - (since * self.skew).round() as i64
    }

    /// Compute the clock from pairs (time, second clock minus first) of the packets of one direction and of those of
    /// the other. `None` if a direction is missing.
    #[must_use]
    pub fn of(there: &[(i64, i64)], back: &[(i64, i64)]) -> Option<Self> {
        let first = there.first()?.0.min(back.first()?.0);
        let last = there.last()?.0.max(back.last()?.0);
        let middle = first + (last - first) / 2;
        let at = |&(ts, _): &(i64, i64)| (ts - middle) as f64;
        let ahead: Vec<_> = there.iter().map(|p| (at(p), p.1 as f64)).collect();
        let behind: Vec<_> = back.iter().map(|p| (at(p), -p.1 as f64)).collect();
        let (up, up_error) = find_lowest_line(&ahead);
        let (down, down_error) = find_lowest_line(&behind);
        let long = last - first >= LONG;
        // The two slopes are the skew and its opposite; what they have in common comes from growing or shrinking
        // delays.
        let skew = (up.slope - down.slope) / 2.0;
        let skew_error = (up.slope + down.slope).abs() / 2.0 + up_error + down_error;
        let told = long && skew.abs() > skew_error;
        let (shortest_up, shortest_down) = if told {
            (up.at_zero, down.at_zero)
        } else {
            let shortest =
                |points: &[(f64, f64)]| points.iter().map(|p| p.1).fold(f64::MAX, f64::min);
            (shortest(&ahead), shortest(&behind))
        };
        Some(Self {
            offset_s: (shortest_up - shortest_down) / 2e9,
            offset_error_s: (shortest_up + shortest_down).abs() / 2e9,
            skew: if told { skew } else { 0.0 },
            skew_error: if long { skew_error } else { 1.0 },
            middle,
        })
    }
}

#[derive(Clone, Copy)]
struct Line {
    slope: f64,
    at_zero: f64,
}

/// Find the line below all `points` (by rising x) that is nearest to them, and the possible error of its slope.
fn find_lowest_line(points: &[(f64, f64)]) -> (Line, f64) {
    let mut hull: Vec<(f64, f64)> = Vec::new();
    for &point in points {
        while let [.., a, b] = hull[..] {
            // `b` is not below the line from `a` to `point`.
            if (b.1 - a.1) * (point.0 - a.0) < (point.1 - a.1) * (b.0 - a.0) {
                break;
            }
            hull.pop();
        }
        if hull.last().is_some_and(|last| last.0 >= point.0) {
            if hull.last().is_some_and(|last| last.1 <= point.1) {
                continue;
            }
            hull.pop();
        }
        hull.push(point);
    }
    let mean = points.iter().map(|p| p.0).sum::<f64>() / points.len() as f64;
    let Some(edge) = hull
        .windows(2)
        .find(|edge| edge[0].0 <= mean && mean <= edge[1].0)
    else {
        let at_zero = hull.first().map_or(0.0, |p| p.1);
        return (
            Line {
                slope: 0.0,
                at_zero,
            },
            f64::MAX,
        );
    };
    let slope = (edge[1].1 - edge[0].1) / (edge[1].0 - edge[0].0);
    let at_zero = edge[0].1 - slope * edge[0].0;
    // The distances of the lowest point of each eighth from the line show the uncertainty of the slope.
    let (first, last) = (points[0].0, points[points.len() - 1].0);
    let span = (last - first).max(1.0);
    let mut above = [f64::MAX; 8];
    for &(x, y) in points {
        let part = ((8.0 * (x - first) / span) as usize).min(7);
        above[part] = above[part].min(y - at_zero - slope * x);
    }
    let mut known: Vec<f64> = above.into_iter().filter(|&y| y < f64::MAX).collect();
    known.sort_by(f64::total_cmp);
    let usual = known[known.len() / 2];
    (Line { slope, at_zero }, usual / span)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(skew: f64, offset: f64, way: f64, sign: f64) -> Vec<(i64, i64)> {
        (0..2000_i64)
            .map(|number| {
                let ts = number * 10_000_000;
                let late = f64::from(((number * 7919) % 101) as i32) * 30_000.0;
                let clocks = offset + skew * (ts as f64 - 10e9);
                (ts, (clocks + sign * (way + late)).round() as i64)
            })
            .collect()
    }

    #[test]
    fn offset_and_skew_are_found_within_their_error() {
        for (skew, offset) in [(0.0, 5e9), (40e-6, -3e6), (-12e-6, 3e12)] {
            let clock = Clock::of(
                &points(skew, offset, 20e6, 1.0),
                &points(skew, offset, 20e6, -1.0),
            )
            .unwrap();
            assert!((clock.offset_s - offset / 1e9).abs() < 0.0005, "{clock:?}");
            assert!(
                (clock.skew - skew).abs() <= clock.skew_error.max(2e-6),
                "{clock:?}"
            );
            assert!(clock.skew_error < 10e-6, "{clock:?}");
            let seen = 3_000_000_000 + (offset + skew * (3e9 - 10e9)) as i64;
            assert!((clock.back(seen) - 3_000_000_000).abs() < 500_000);
        }
    }

    #[test]
    fn a_path_that_takes_longer_one_way_is_within_the_error() {
        let clock = Clock::of(&points(0.0, 0.0, 10e6, 1.0), &points(0.0, 0.0, 30e6, -1.0)).unwrap();
        assert!(clock.offset_s.abs() <= clock.offset_error_s, "{clock:?}");
        assert!(Clock::of(&[], &[(0, 0)]).is_none());
    }
}
