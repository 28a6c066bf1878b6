-- Part of the scripts that may free a lock, for clients that exchange wake-ups with Redisson.
-- KEYS  1 lock
-- ARGV  5 Redisson's channel, 6 `s` if it is a sharded one, as in a cluster, else nothing, 7
--       life of the queue in ms, 8 for how many ms Redisson counts as waiting, 9 its turn in ms
-- SETS  `tell_redisson`

-- Tells Redisson unless a hold has the lock, by Redisson's message `0`. Returns true if it is
-- Redisson's turn: the lock is left free then, and for a while clients of this kind do not take it.
-- Redisson is in no queue, but it listens on the channel of the lock. Clients of this kind that
-- wait do so too, and on a companion of that channel, so the difference is Redisson. Between turns
-- it does not listen for a moment, so it counts as waiting for a while after it was last seen
-- listening. Then it has a place in the queue, as one client, `redisson`. If only clients of this
-- kind seem to listen, the message is `00`, which is the same to Redisson, and which they ignore.
-- Failures are ignored: Redisson is told that the lock is free, but gets no turn. `ends` is a key,
-- a string with the time in ms at which Redisson's turn ends, or 0, that exists while Redisson
-- counts as waiting.
local function tell_redisson(queue, ends)
  local channel, form, companion = ARGV[5], ARGV[6], 'leasehold:' .. ARGV[5]
  local listen = redis.pcall(
    'pubsub', form == 's' and 'shardnumsub' or 'numsub', channel, companion)
  if form == 's' and listen.err then
    -- Redis 6.2 has no sharded channels, and Redisson then uses others.
    form, listen = '', redis.pcall('pubsub', 'numsub', channel, companion)
  end
  local waits
  if listen[2] and listen[2] > listen[4] then
    waits = redis.pcall('set', ends, 0, 'px', ARGV[8]).ok
  else
    waits = redis.pcall('exists', ends) == 1
  end
  local time = redis.call('time')
  if waits and type(redis.pcall('zscore', queue, 'redisson')) ~= 'string' then
    local joined =
      redis.pcall('zadd', queue, 'nx', time[1] * 1000 + time[2] / 1000, 'redisson')
    -- No key is left without a TTL, even if the user lacks the right to set one.
    if type(joined) == 'number' and redis.pcall('pexpire', queue, ARGV[7]) ~= 1 then
      redis.pcall('zrem', queue, 'redisson')
    end
  end
  if (redis.pcall('hvals', KEYS[1])[1] or '0') ~= '0' then
    return false
  end
  redis.pcall(form .. 'publish', channel, waits and '0' or '00')
  local next = redis.pcall('exists', KEYS[1]) == 0 and redis.pcall('zrange', queue, 0, 0)[1]
  if next == 'redisson' or not waits then
    redis.pcall('zrem', queue, 'redisson')
  end
  local memory = next == 'redisson' and waits and redis.pcall('pttl', ends)
  if type(memory) == 'number' and memory > 0 then
    local turn = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[9]
    return redis.pcall('set', ends, string.format('%.0f', turn), 'px', memory).ok ~= nil
  end
  return false
end

