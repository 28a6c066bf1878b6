# Owns a server: starts it, signals it and ends with it. See keeper.rs. Ignores the hang-up that the
# kernel sends to a group with a stopped server.
trap '' HUP
dir=$1; shift; server=
while read -r order; do
    case $order in
        START) "$@" </dev/null >>"$dir/log" 2>&1 & server=$! ;;
        KILL) kill -s KILL "$server"; wait "$server"; server= ;;
        *) kill -s "$order" "$server" ;;
    esac
    echo "${server:-0}"
done
kill -s KILL "$server"; wait "$server"
rm -rf "$dir"
