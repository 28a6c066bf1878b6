
# Completes names that are held.
_leasehold_names() {
    local -a server names
    local i
    for ((i = 2; i < CURRENT; i++)); do
        [[ ${words[i]} == (--url|--prefix) ]] && server+=("${words[i]}" "${words[i + 1]}")
    done
    names=("${(@f)$(leasehold $server ls --names 2>/dev/null)}")
    compadd -a names
}
