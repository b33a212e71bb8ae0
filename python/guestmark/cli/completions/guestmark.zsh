#compdef guestmark
# Completion of guestmark for zsh: in a directory of $fpath as _guestmark, or sourced after compinit.
_guestmark() {
    local -a lines open closed open_shown closed_shown
    local line value shown
    lines=(${(f)"$(_GUESTMARK_COMPLETE=1 \
        _GUESTMARK_COMPLETE_LINE="${words[1,CURRENT]}" ${~words[1]} 2>/dev/null)"})
    if (( ! $#lines )); then
        _files
        return
    fi
    for line in $lines; do
        value=${line%%$'\t'*} shown=${line/$'\t'/  -- }
        if [[ $value == *[=:] ]]; then
            open+=($value) open_shown+=($shown)
        else
            closed+=($value) closed_shown+=($shown)
        fi
    done
    # No space after what goes on.
    (( ! $#open )) || compadd -l -S '' -d open_shown -a open
    (( ! $#closed )) || compadd -l -d closed_shown -a closed
}
if [[ $funcstack[1] == _guestmark ]]; then # zsh has just loaded this file in order to complete
    _guestmark "$@"
else
    compdef _guestmark guestmark
fi
