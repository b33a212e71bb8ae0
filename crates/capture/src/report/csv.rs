//! Make rows of CSV from their JSON: one list of fields serves both formats, and no tree of values is built per row.

use crate::report::escape::escape_controls;
use serde_json::Value;

/// Collect column names: the paths of all leaves, joined by `_`.
pub fn collect_names(prefix: &str, value: &Value, out: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if prefix.is_empty() {
                    name.clone()
                } else {
                    format!("{prefix}_{name}")
                };
                collect_names(&path, value, out);
            }
        }
        _ => out.push(prefix.to_owned()),
    }
}

/// Append one cell, quoted if necessary. Control characters that a terminal would interpret are escaped, and text that
/// a spreadsheet would interpret as a formula is preceded by an apostrophe.
pub fn append_cell(text: &str, line: &mut Vec<u8>) {
    let mut text = escape_controls(text);
    if text.len() > 1 && text.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        text.insert(0, '\'');
    }
    if text.contains([',', '"', '\n', '\r']) {
        line.push(b'"');
        line.extend_from_slice(text.replace('"', "\"\"").as_bytes());
        line.push(b'"');
    } else {
        line.extend_from_slice(text.as_bytes());
    }
}

/// Append the leaves of a JSON object as `serde_json` writes it (no white space), each after a comma; lists of words
/// are joined by spaces, and null becomes an empty cell.
pub fn append_cells(json: &[u8], line: &mut Vec<u8>) {
    let mut at = 0;
    let mut in_list = false;
    while let Some(&byte) = json.get(at) {
        match byte {
            b'"' => {
                let end = find_string_end(json, at);
                let is_key = json.get(end) == Some(&b':');
                if !is_key {
                    let text: String = serde_json::from_slice(&json[at..end]).unwrap_or_default();
                    if in_list {
                        line.extend_from_slice(text.as_bytes());
                        line.extend_from_slice(if json.get(end) == Some(&b',') {
                            b" "
                        } else {
                            b""
                        });
                    } else {
                        line.push(b',');
                        append_cell(&text, line);
                    }
                }
                at = end;
            }
            b'[' => {
                in_list = true;
                line.push(b',');
                at += 1;
            }
            b']' => {
                in_list = false;
                at += 1;
            }
            b'{' | b'}' | b',' | b':' => at += 1,
            _ => {
                let rest = &json[at..];
                let length = rest
                    .iter()
                    .position(|b| matches!(b, b',' | b'}' | b']'))
                    .unwrap_or(rest.len());
                line.push(b',');
                if &rest[..length] != b"null" {
                    line.extend_from_slice(&rest[..length]);
                }
                at += length;
            }
        }
    }
}

fn find_string_end(json: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(&byte) = json.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    json.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nothing_in_a_cell_is_active() {
        let mut line = Vec::new();
        for text in ["=1+1", "@x", "a\u{1b}[2J", "-5"] {
            append_cell(text, &mut line);
            line.push(b'|');
        }
        assert_eq!(
            String::from_utf8(line).expect("text"),
            "'=1+1|'@x|a\\u001b[2J|'-5|"
        );
    }

    #[test]
    fn leaves_become_cells() {
        let value = json!({"a": 1, "b": {"c": null, "d": "x,\"y\"", "e": ["p", "q"], "f": []}, "g": -2.5e-6});
        let (mut header, mut line) = (Vec::new(), Vec::new());
        collect_names("", &value, &mut header);
        append_cells(&serde_json::to_vec(&value).expect("json"), &mut line);
        assert_eq!(header, ["a", "b_c", "b_d", "b_e", "b_f", "g"]);
        assert_eq!(
            String::from_utf8(line).expect("text"),
            ",1,,\"x,\"\"y\"\"\",p q,,-2.5e-6"
        );
    }
}
