# Completion of guestmark for fish.
function __guestmark_complete
    set --local line (commandline --current-process --cut-at-cursor | string collect)
    set --local found (_GUESTMARK_COMPLETE=1 _GUESTMARK_COMPLETE_LINE=$line \
        guestmark 2>/dev/null | string match --regex '.+')
    if set --query found[1]
        printf '%s\n' $found
    else
        __fish_complete_path (commandline --current-token)
    end
end
complete --command guestmark --no-files --arguments '(__guestmark_complete)'
