-- Reports who holds a name, and which clients wait for it. An offer to a waiting client is not a
-- hold.
-- KEYS  1 lock, 2 notes: while the slot moves in a cluster, a script with one key is executed, but
--       one with several has to wait until none is missing, 3 fence, if the token is wanted, 4
--       queue of waiting clients, if the name may be of any kind; else it is that of a lock
-- ARGV  1 `count` to count the permits of a semaphore instead, offers included
-- USES  `find_holder`, `longest`, `find_members` and `is_hold`
-- RETURNS {holds, last token or 0, waiting clients}. A hold is {kind, owner, ms until its lease
--         ends, depth, and the note if it has one}, and its kind is `l` for a lock, `s` for one of
--         another library, `r`, `w` or `p`. With `count`, the number of permits
local counts, holds = ARGV[1] == 'count', {}
local has_notes = KEYS[2] and redis.pcall('exists', KEYS[2]) == 1
local function add(kind, owner, left, depth)
  local note = has_notes and redis.pcall('hget', KEYS[2], owner)
  holds[#holds + 1] = {kind, owner, left, depth, type(note) == 'string' and note or nil}
end
local left, holder, depth, foreign
if not counts then
  left, holder, depth, foreign = find_holder()
  if foreign and not (KEYS[4] and redis.call('type', KEYS[1]).ok == 'zset') then
    return foreign
  end
end
if counts or foreign then
  local time = redis.call('time')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  left, foreign = find_members()
  if foreign then
    return foreign
  end
  if counts then
    local first = left ~= -2
      and redis.call('zrange', KEYS[1], '(' .. now, '+inf', 'byscore', 'limit', 0, 1)[1]
    if first and string.sub(first, 1, 2) ~= 'p:' then
      return redis.error_reply('WRONGTYPE found a read-write lock')
    end
    return first and redis.call('zcount', KEYS[1], '(' .. now, '+inf') or 0
  end
  local members = redis.call('zrange', KEYS[1], '(' .. now, '+inf', 'byscore', 'withscores')
  for i = 1, #members, 2 do
    local member = members[i]
    if is_hold(member) and string.sub(member, -2) ~= ':0' then
      left = tonumber(members[i + 1]) - now
      add(string.sub(member, 1, 1), string.sub(member, 3), left, '1')
    end
  end
elseif holder and not (depth == '0' and string.sub(holder, -2) == ':0') then
  local kind = redis.call('type', KEYS[1]).ok == 'string' and 's' or 'l'
  -- A client that asks for the lock waits no longer than this.
  left = math.min(left, longest(holder, depth) or left)
  add(kind, holder, left, depth)
end
local fence = KEYS[3] and redis.pcall('get', KEYS[3])
local waiting = KEYS[4] and redis.pcall('zrange', KEYS[4], 0, -1) or {}
return {holds, type(fence) == 'string' and fence or '0', waiting.err and {} or waiting}
