-- Part of the scripts that acquire or free a lock, for clients that share keys with programs that
-- poll for them: these try `SET key token NX PX` again and again, with pauses.
-- KEYS  1 lock
-- SETS  `whose_turn`, `set_turn` and `leave_to_pollers`

-- Pollers are in no queue, and cannot be offered the lock. So they and the clients of this kind
-- take turns of the same length. A release in the clients' turn offers the lock as always. The
-- first release after that turn leaves the lock free, and for 20 ms only pollers get it. The
-- pollers' turn then lasts until a client gets the lock again, and the clients' next turn is as
-- long. If no poller had the lock, the clients' turn is 20 ms, or 100 ms if none was seen for two
-- seconds.
-- A string stores whose turn it is, a time in ms, and when a poller was last seen. The time is the
-- beginning of the pollers' turn (`theirs`) or the end of the clients' turn (`ours`).
-- Without that string, the next release begins a turn of the pollers. Failures are ignored.

-- Returns whose turn it is or nil, its time, when a poller was last seen, and the time now.
local function whose_turn(key)
  local time, turn = redis.call('time'), redis.pcall('get', key)
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local pattern = '^(%a+) (%d+) (%d+)$'
  local whose, at, seen = string.match(type(turn) == 'string' and turn or '', pattern)
  at, seen = tonumber(at or 0), tonumber(seen or 0)
  if at > now + (whose == 'ours' and 10000 or 0) then
    -- The clock was set back.
    whose = nil
  end
  return whose, at, seen, now
end

local function set_turn(key, whose, at, seen)
  redis.pcall('set', key, string.format('%s %.0f %.0f', whose, at, seen), 'px', 10000)
end

-- Begins the pollers' turn, unless the lock is not free, or it is the clients' turn. Returns
-- whether the lock is left to the pollers.
local function leave_to_pollers(key)
  local whose, at, seen, now = whose_turn(key)
  if redis.pcall('exists', KEYS[1]) == 1 or whose == 'ours' and at > now then
    return false
  end
  if whose ~= 'theirs' or at + 20 <= now then
    set_turn(key, 'theirs', now, seen)
  end
  return true
end
