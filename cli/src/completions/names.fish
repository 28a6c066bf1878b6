
# Completes names that are held.
complete -c leasehold -n "__fish_seen_subcommand_from lock ls run show unlock" \
    -f -a "(leasehold ls --names 2>/dev/null)"
