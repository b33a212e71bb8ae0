# Completion of guestmark for bash 4.4 and later.
_guestmark() {
    # What is on the line and not what bash made of it: bash takes `memory=1` for three words.
    local line=${COMP_LINE:0:COMP_POINT} typed kept= sign reply
    mapfile -t COMPREPLY < <(
        _GUESTMARK_COMPLETE=1 _GUESTMARK_COMPLETE_LINE=$line \
            "${1/#\~/$HOME}" 2>/dev/null | sed '/^$/d; s/\t.*//' # the texts behind tabulators are for other shells
    )
    for reply in "${COMPREPLY[@]}"; do
        [[ $reply != *[=:] ]] || compopt -o nospace
    done
    # Of the last word bash replaces only what follows these signs.
    typed=${line##*[[:space:]]}
    for sign in = :; do
        [[ $COMP_WORDBREAKS != *"$sign"* || ${typed#"$kept"} != *"$sign"* ]] || kept=${typed%"${typed##*"$sign"}"}
    done
    COMPREPLY=("${COMPREPLY[@]#"$kept"}")
}
complete -o bashdefault -o default -F _guestmark guestmark
