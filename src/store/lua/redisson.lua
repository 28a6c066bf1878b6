-- Part of the scripts that may free a lock, for clients that exchange wake-ups with Redisson.
-- KEYS  1 lock
-- ARGV  5 Redisson's channel, 6 `s` if it is a sharded one, as in a cluster, else nothing, 7 for
--       how many ms Redisson counts as waiting, 8 its turn in ms
-- SETS  `tell_redisson`

-- Notifies Redisson with its message `0`, unless a hold has the lock. Returns true if it is
-- Redisson's turn: the lock is then left free, and for a while clients of this kind do not take it.
-- Redisson is in no queue, but it listens on the channel of the lock. Waiting clients of this kind
-- listen on it too, and also on a companion of that channel. The difference is the number of
-- Redisson's listeners. Between turns Redisson stops listening for a moment, so it counts as
-- waiting for a while after it was last seen listening. A lot drawn from the clock then decides
-- whose turn it is: Redisson counts as one client. If only clients of this kind seem to listen, the
-- message is `00`, which means the same to Redisson, and which these clients ignore. Failures are
-- ignored: Redisson is told that the lock is free, but gets no turn. `turn` is a key that exists
-- while Redisson counts as waiting: a string with the time in ms at which Redisson's turn ends, or
-- 0.
local function tell_redisson(queue, turn)
  local channel, form, companion = ARGV[5], ARGV[6], 'leasehold:' .. ARGV[5]
  if (redis.pcall('hvals', KEYS[1])[1] or '0') ~= '0' then
    return false
  end
  local listen = redis.pcall(
    'pubsub', form == 's' and 'shardnumsub' or 'numsub', channel, companion)
  if form == 's' and listen.err then
    -- Redis 6.2 has no sharded channels, and Redisson then uses plain ones.
    form, listen = '', redis.pcall('pubsub', 'numsub', channel, companion)
  end
  local listens = listen[2] and listen[2] > listen[4]
  local left = redis.pcall('pttl', turn)
  local waits = listens or type(left) == 'number' and left ~= -2
  redis.pcall(form .. 'publish', channel, waits and '0' or '00')
  if not waits then
    return false
  end
  local time, clients = redis.call('time'), redis.pcall('zrange', queue, 0, 99)
  local is_its = time[2] % (#clients + 1) == 0 and redis.pcall('exists', KEYS[1]) == 0
  local ends = is_its and time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[8] or 0
  if listens or left < 0 or left > tonumber(ARGV[7]) then
    -- More is left if the server's clock has since been set back.
    left = ARGV[7]
  end
  local set = redis.pcall('set', turn, string.format('%.0f', ends), 'px', left)
  return is_its and type(set) == 'table' and set.ok ~= nil
end
