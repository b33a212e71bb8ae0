# Completion of guestmark for fish.
function __guestmark_complete
    _GUESTMARK_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args _TYPER_COMPLETE_ARGS=(commandline -cp | string collect) \
        guestmark 2>/dev/null
end
# Files are offered where guestmark has nothing to offer.
complete --command guestmark --arguments '(__guestmark_complete)'
