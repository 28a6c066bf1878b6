
-- Reports who holds a name, of whatever kind it is, and which clients wait for it.
-- KEYS  1 lock, 2 fence, 3 queue of waiting clients
-- USES  `holds`; `now`, `foreign` and `is_hold`
-- RETURNS {holds, last token or 0, waiting clients}. A hold is {kind, owner, ms until its lease
--         ends, depth}, and its kind `l` a lock, `s` one of another library, `r`, `w` or `p`
if not holds then
  if foreign then
    return foreign
  end
  holds = {}
  local members = redis.call('zrange', KEYS[1], '(' .. now, '+inf', 'byscore', 'withscores')
  for i = 1, #members, 2 do
    local member = members[i]
    -- Not an offer.
    if is_hold(member) and string.sub(member, -2) ~= ':0' then
      local left = tonumber(members[i + 1]) - now
      holds[#holds + 1] = {string.sub(member, 1, 1), string.sub(member, 3), left, '1'}
    end
  end
end
local fence, waiting = redis.pcall('get', KEYS[2]), redis.pcall('zrange', KEYS[3], 0, -1)
return {holds, type(fence) == 'string' and fence or '0', waiting.err and {} or waiting}
