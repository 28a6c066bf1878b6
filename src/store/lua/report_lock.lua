
-- Part of the script that reports on a name: takes what `holder.lua` has found. A lock that is
-- offered to a waiting client is not held.
-- USES  `left`, `holder`, `depth` and `foreign`
-- SETS  `holds` to a list, or to nil if the name is not that of a lock
-- RETURNS an error reply if the key can be nothing else either
if foreign and redis.call('type', KEYS[1]).ok ~= 'zset' then
  return foreign
end
local holds
if not foreign then
  holds = {}
  if holder and not (depth == '0' and string.sub(holder, -2) == ':0') then
    local kind = redis.call('type', KEYS[1]).ok == 'string' and 's' or 'l'
    holds[1] = {kind, holder, left, depth}
  end
end

