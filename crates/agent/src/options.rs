//! Parses the command lines of subcommands that run a command: the options come first, then the command with its own
//! options.

use std::ffi::OsString;
use std::io;

use lexopt::{Arg, Error, Parser};

/// Reads options up to the first argument that is not one. Returns this argument and all that follow: the command to
/// run.
///
/// `take` is called with the name of each long option. It reads the option's value, if it has one, from the parser, and
/// returns false for an unknown name. A command line without a command is an error.
pub fn read_until_command(
    arguments: impl Iterator<Item = OsString>,
    mut take: impl FnMut(&str, &mut Parser) -> Result<bool, Error>,
) -> Result<Vec<OsString>, Error> {
    let mut parser = Parser::from_args(arguments);
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long(name) => {
                let name = name.to_owned();
                if !take(&name, &mut parser)? {
                    return Err(Arg::Long(&name).unexpected());
                }
            }
            Arg::Value(first) => {
                let mut command = vec![first];
                command.extend(parser.raw_args()?);
                return Ok(command);
            }
            other @ Arg::Short(_) => return Err(other.unexpected()),
        }
    }
    Err("no command given".into())
}

/// Converts the error of a wrong command line to the error of a subcommand.
pub fn to_io_error(error: &Error) -> io::Error {
    io::Error::other(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    fn read(words: &[&str]) -> Result<(Vec<String>, Vec<OsString>), String> {
        let mut values = Vec::new();
        let command =
            super::read_until_command(words.iter().map(OsString::from), |name, parser| {
                match name {
                    "disk" => values.push(parser.value()?.to_string_lossy().into_owned()),
                    "each" => values.push("each".to_owned()),
                    _ => return Ok(false),
                }
                Ok(true)
            });
        command
            .map(|command| (values, command))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_keeps_its_own_options() {
        let (values, command) =
            read(&["--disk", "/d", "--each", "--", "sh", "--disk", "x"]).unwrap();
        assert_eq!(values, ["/d", "each"]);
        assert_eq!(command, ["sh", "--disk", "x"]);
        assert_eq!(read(&["--disk=/d", "sh", "-c"]).unwrap().1, ["sh", "-c"]);
    }

    #[test]
    fn wrong_command_lines_are_refused() {
        let cases = [
            (vec!["--each"], "no command given"),
            (vec!["--each", "--"], "no command given"),
            (vec!["--other", "sh"], "invalid option '--other'"),
            (vec!["-x", "sh"], "invalid option '-x'"),
            (vec!["--disk"], "missing argument for option '--disk'"),
            (
                vec!["--each=1", "sh"],
                "unexpected argument for option '--each': \"1\"",
            ),
        ];
        for (words, error) in cases {
            assert_eq!(read(&words), Err(error.to_owned()), "{words:?}");
        }
    }
}
