-- Part of the scripts for what several owners can hold: the two sides of a read-write lock, the
-- permits of a semaphore. The key is a sorted set with a TTL. A member is a hold, `r:`, `w:` or
-- `p:` and its owner, and its score is the end of its lease in ms of the server's clock. A member
-- whose time is over holds nothing; an acquire that begins a hold removes it. The holds are counted
-- anew each time, so that no count can drift. An offer is a hold without a number,
-- `<kind>:<client id>:0`, whose place only that client can take. A set whose lowest or highest
-- member is no hold is another program's data.
-- Nothing is written here.
-- KEYS  1 lock
-- SETS  `left` to the TTL of the key in ms, -1 if it has none, -2 if there is no such
--       key; `foreign` to `no members` if it is something else, to an error reply or to nil;
--       `lowest` and `highest` to these members and their scores, or to nil; and `is_hold`, which
--       returns whether a member has the shape of a hold
local left = redis.call('pttl', KEYS[1])
local owner = ':' .. string.rep('%x', 32) .. ':%x+$'
local function is_hold(member)
  return string.find(member, '^[rwp]:') and string.find(member, owner)
end
local foreign, lowest, highest
if left ~= -2 then
  lowest = redis.pcall('zrange', KEYS[1], 0, 0, 'withscores')
  highest = redis.pcall('zrange', KEYS[1], -1, -1, 'withscores')
  if lowest.err and not string.find(lowest.err, 'WRONGTYPE', 1, true) then
    foreign = lowest
  elseif lowest.err or left < 0 or not (is_hold(lowest[1]) and is_hold(highest[1])) then
    foreign = 'no members'
  end
end

