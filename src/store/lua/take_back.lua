-- Takes back what the client was offered of a read-write lock or a semaphore, because no thread of
-- it waits for that any more; the clients that wait may have it. A client that is offered a place
-- has left the queue already.
-- KEYS  1 lock, 2 queue of waiting clients
-- ARGV  1 client id, 2 for how many ms a place is offered then, 3 `shard`
-- USES  `now`
local queue, window, shard = KEYS[2], tonumber(ARGV[2]), ARGV[3]
local permits, me, serves = 0, nil, false
for _, kind in ipairs({'r:', 'w:', 'p:'}) do
  local offer = kind .. ARGV[1] .. ':0'
  local ends = tonumber(redis.pcall('zscore', KEYS[1], offer))
  if ends and ends > now and redis.pcall('zrem', KEYS[1], offer) == 1 then
    serves = true
    if kind == 'p:' then
      -- The number of permits is not known here: as many as with the offer are right.
      permits = redis.call('zcount', KEYS[1], '(' .. now, '+inf') + 1
    end
  end
end

