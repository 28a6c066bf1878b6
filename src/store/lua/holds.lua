-- Part of the scripts that examine the key of a lock. Writes nothing.
-- KEYS  1 lock
-- SETS  `is_hold`, `is_client`, `longest`, `find_holder` and `find_members`

-- The end of a client's id, for patterns. Those patterns begin with `^.*`, because Lua tries any
-- other pattern at each position.
local id = '%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x'

-- Returns whether a member of a sorted set has the shape of a hold.
local function is_hold(member)
  return string.find(member, '^[rwp]:') and string.find(member, '^.*:' .. id .. ':%x+$')
end

-- Returns whether the holder of a lock is a client of this library, which notifies the next one.
local function is_client(holder)
  return string.find(holder, '^.*' .. id .. ':%x+$')
end

-- Returns an error reply that says what the key holds, for a script that wanted another `form`, or
-- that form in another shape. `left` is the TTL of the key.
local function wrong_type(left, form)
  local kind, found = redis.call('type', KEYS[1]).ok, nil
  if kind == 'string' then
    found = left < 0 and 'a string without a TTL' or 'a lock of another library'
  elseif kind == 'hash' or kind == 'zset' then
    local noun = kind == 'hash' and 'a hash' or 'a sorted set'
    found = noun .. (left < 0 and ' without a TTL' or ' of another program')
  end
  if kind == 'zset' and left >= 0 and form == 'hash' then
    local first = redis.pcall('zrange', KEYS[1], 0, 0)[1]
    local last = redis.pcall('zrange', KEYS[1], -1, -1)[1]
    local owner = '^.*:' .. id .. ':%x+$'
    if first and string.find(first, owner) and string.find(last, owner) then
      local sides = { p = 'a semaphore', r = 'a read-write lock', w = 'a read-write lock' }
      found = sides[string.match(first, '^(.):')] or found
    end
  elseif kind == 'hash' and left >= 0 and form == 'zset' then
    -- A large hash is not a lock, and is not read.
    local size = redis.pcall('hlen', KEYS[1])
    local fields = type(size) == 'number' and size <= 512 and redis.pcall('hgetall', KEYS[1]) or {}
    if fields[2] and string.find(fields[1], '^.+:%x+$') and string.find(fields[2], '^%-?%d+$') then
      found = 'a lock'
    end
  end
  return redis.error_reply('WRONGTYPE found ' .. (found or 'a ' .. kind))
end

-- Returns the maximum number of ms for which a lock with this holder and depth 0 stays taken: a
-- second for an offer, else a power of two whose exponent is in bits 56 to 61 of the owner's
-- number. If more is left, the server's clock has been set back. Returns nil for any other lock.
local function longest(holder, depth)
  local number = depth == '0' and string.match(holder, '^.*' .. id .. ':(%x+)$')
  if not number then
    return nil
  elseif number == '0' then
    return 1000
  end
  local bits = tonumber(string.sub(number, 1, -15), 16)
  return bits and bits % 64 > 0 and 2 ^ (bits % 64) or nil
end

-- Finds the holder of a lock. `left` is the TTL of its key, if that is known.
-- A lock is a hash with a TTL. Each of its fields is an owner `<id>:<hex digits>` with an integer,
-- or an owner of this library with any depth, even a spoilt one. Redisson adds a field `mode`, and
-- its read locks have a field for each reader. A string with a TTL is a lock of another library
-- (`SET NX PX`). Anything else is another program's data and is reported as such. So is a large
-- hash, which is not read.
-- Returns the TTL of the key in ms, -1 if it has none, -2 if there is no such key; the holder and
-- its depth, strings or nil; an error reply if the key holds something else, or nil; and whether
-- the holder's field is the only one of a hash.
local function find_holder(left)
  left = left or redis.call('pttl', KEYS[1])
  if left == -2 then
    return left
  end
  local kind, is_lock, alone = redis.call('type', KEYS[1]).ok, left >= 0, false
  local holder, depth = nil, nil
  if is_lock and kind == 'string' then
    holder, depth = redis.call('getrange', KEYS[1], 0, 255), '1'
  elseif is_lock and kind == 'hash' and redis.call('hlen', KEYS[1]) <= 512 then
    local fields = redis.call('hgetall', KEYS[1])
    alone = #fields == 2
    for i = 1, #fields, 2 do
      local field, value = fields[i], fields[i + 1]
      local any = string.find(value, '^%-?%d+$') and string.find(field, '^.+:%x+$')
      if any or is_client(field) then
        holder, depth = field, value
      else
        is_lock = is_lock and field == 'mode'
      end
    end
  end
  return left, holder, depth, not (is_lock and holder) and wrong_type(left, 'hash') or nil, alone
end

-- Finds the holds of a name with several owners: the two sides of a read-write lock, the permits of
-- a semaphore. The key is a sorted set with a TTL. A member is a hold, `r:`, `w:` or `p:` and its
-- owner, and its score is the end of its lease in ms of the server's clock. A member whose lease is
-- over holds nothing; an acquire that begins a hold removes it. The holds are counted each time, so
-- that no count can drift. An offer is a hold without a number, `<kind>:<client id>:0`, whose place
-- only that client can take. A set whose lowest or highest member is no hold is another program's
-- data.
-- Returns the TTL of the key, like `find_holder`; an error reply if the key holds something else,
-- or nil; and the lowest and the highest member with their scores, or nil.
local function find_members()
  local left = redis.call('pttl', KEYS[1])
  if left == -2 then
    return left
  end
  local foreign
  local lowest = redis.pcall('zrange', KEYS[1], 0, 0, 'withscores')
  local highest = redis.pcall('zrange', KEYS[1], -1, -1, 'withscores')
  if lowest.err and not string.find(lowest.err, 'WRONGTYPE', 1, true) then
    foreign = lowest
  elseif lowest.err or left < 0 or not (is_hold(lowest[1]) and is_hold(highest[1])) then
    foreign = wrong_type(left, 'zset')
  end
  return left, foreign, lowest, highest
end

