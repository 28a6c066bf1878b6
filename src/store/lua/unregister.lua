-- Removes a client from the queue of a name, whatever it waits for there, and takes back an offer
-- to it, because none of its threads waits any more. The next clients may then get their turn.
-- KEYS  1 lock, 2 queue of waiting clients, 3 if the client leaves turns to Redisson or to pollers:
--       Redisson's turn, 4 if to pollers: whose turn it is
-- ARGV  1 client id, 2 for how many ms the lock is then offered, 4 `shard`, 5 and later if Redisson
--       is told: as in `redisson.lua`
-- USES  `find_members`, `serve`, `wake`, `tell_redisson` and `leave_to_pollers`
-- RETURNS 1, or 0 if the client did not wait
local queue, client, window, shard = KEYS[2], ARGV[1], ARGV[2], ARGV[4]
local waited = redis.pcall('zrem', queue, client) == 1
if redis.pcall('hdel', KEYS[1], client .. ':0') == 1 or waited then
  if not (ARGV[5] and tell_redisson(queue, KEYS[3])) then
    local is_theirs = KEYS[4] and leave_to_pollers(KEYS[4])
    wake(queue, not is_theirs and window or nil, shard)
  end
  return 1
end
local time, answer, offers, permits = redis.call('time'), 0, 0, 0
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, kind in ipairs({'r:', 'w:', 'p:'}) do
  local offer = kind .. client .. ':0'
  local ends = tonumber(redis.pcall('zscore', KEYS[1], offer))
  local offered = ends and ends > now and redis.pcall('zrem', KEYS[1], offer) == 1
  if redis.pcall('zrem', queue, kind .. client) == 1 or offered then
    answer, offers, permits = 1, offered and 1 or 0, kind == 'p:' and 1 or 0
  end
end
local _, foreign = find_members()
if answer == 1 and not foreign then
  if permits > 0 then
    -- The number of permits is not known here. The number of permits taken, this one included, is
    -- safe.
    permits = math.max(1, redis.call('zcount', KEYS[1], '(' .. now, '+inf') + offers)
  end
  serve(queue, now, tonumber(window), permits, shard)
end
return answer
