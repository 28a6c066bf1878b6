
# Completes names that are held, in addition to what is completed above.
_leasehold_with_names() {
    _leasehold "$@"
    local line=${COMP_LINE:0:COMP_POINT} server=() task= current before words i last name
    read -ra words <<<"$line"
    [[ $line == *' ' ]] && words+=('')
    last=$((${#words[@]} - 1))
    current=${words[last]}
    for ((i = 1; i < last; i++)); do
        case ${words[i]} in
            --) return ;;
            --url | --prefix) server+=("${words[i]}" "${words[i + 1]}") ;;
            lock | ls | run | show | unlock) task=${words[i]} ;;
        esac
    done
    [[ $task && $current != -* ]] || return
    # Bash takes what is before a colon as a separate word.
    before=${current%"${current##*:}"}
    while read -r name; do
        printf -v name %q "$name"
        [[ $name == "$current"* ]] && COMPREPLY+=("${name#"$before"}")
    done < <(leasehold "${server[@]}" ls --names 2>/dev/null)
}

complete -o bashdefault -o default -F _leasehold_with_names leasehold
