-- Reports who holds a name, of whatever kind it is, and which clients wait for it. What is offered
-- to a waiting client is not held.
-- KEYS  1 lock, 2 fence, 3 queue of waiting clients
-- USES  `find_holder`, `find_members` and `is_hold`
-- RETURNS {holds, last token or 0, waiting clients}. A hold is {kind, owner, ms until its lease
--         ends, depth}, and its kind `l` a lock, `s` one of another library, `r`, `w` or `p`
local left, holder, depth, foreign = find_holder()
local holds = {}
if foreign then
  if redis.call('type', KEYS[1]).ok ~= 'zset' then
    return foreign
  end
  local time = redis.call('time')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  left, foreign = find_members()
  if foreign then
    return foreign
  end
  local members = redis.call('zrange', KEYS[1], '(' .. now, '+inf', 'byscore', 'withscores')
  for i = 1, #members, 2 do
    local member = members[i]
    if is_hold(member) and string.sub(member, -2) ~= ':0' then
      left = tonumber(members[i + 1]) - now
      holds[#holds + 1] = {string.sub(member, 1, 1), string.sub(member, 3), left, '1'}
    end
  end
elseif holder and not (depth == '0' and string.sub(holder, -2) == ':0') then
  local kind = redis.call('type', KEYS[1]).ok == 'string' and 's' or 'l'
  holds[1] = {kind, holder, left, depth}
end
local fence, waiting = redis.pcall('get', KEYS[2]), redis.pcall('zrange', KEYS[3], 0, -1)
return {holds, type(fence) == 'string' and fence or '0', waiting.err and {} or waiting}
