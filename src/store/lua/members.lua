-- Part of the scripts for what several owners can hold: the two sides of a read-write lock, the
-- permits of a semaphore. The key is a sorted set with a TTL. A member is a hold, `r:`, `w:` or
-- `p:` and its owner, and its score is the end of its lease in ms of the server's clock. A member
-- whose time is over holds nothing; the next acquire or release removes it. The holds are counted
-- anew each time, so that no count can drift. An offer is a hold without a number,
-- `<kind>:<client id>:0`, whose place only that client can take.
-- Nothing is written here.
-- KEYS  1 lock
-- USES  `now`
-- SETS  `left` to the TTL of the key in ms, -1 if it has none, -2 if there is no such
--       key; `foreign` to an error reply if it is another program's data, else to nil
local left = redis.call('pttl', KEYS[1])
local foreign
if left ~= -2 then
  local members = redis.pcall('zrange', KEYS[1], 0, 0)
  if members.err then
    foreign = members
  elseif left < 0 or not string.find(members[1], '^[rwp]:.+:%x+$') then
    foreign = redis.error_reply('WRONGTYPE ' .. KEYS[1] .. ' holds no read-write lock or semaphore')
  end
end

