-- Part of the scripts that look at the holder of a lock. A lock is a hash with a TTL, and each of
-- its fields is an owner `<id>:<hex digits>` with an integer, or an owner of this library with any
-- depth, even a spoilt one; Redisson's `mode` may stand beside, and its read locks have a field for
-- each reader. A string with a TTL is a lock of another library (`SET NX PX`). Anything else is
-- another program's data: it is reported as such, and so is a large hash, which is not read.
-- KEYS  1 lock
-- SETS  `left` to the TTL of the key in ms, -1 if it has none, -2 if there is no such key; `holder`
--       and `depth` to strings, or to nil; `foreign` to `no lock` or nil
local left = redis.call('pttl', KEYS[1])
local holder, depth, foreign
if left ~= -2 then
  local kind = redis.call('type', KEYS[1]).ok
  local is_lock = left >= 0
  if is_lock and kind == 'string' then
    holder, depth = redis.call('getrange', KEYS[1], 0, 255), '1'
  elseif is_lock and kind == 'hash' and redis.call('hlen', KEYS[1]) <= 512 then
    local fields = redis.call('hgetall', KEYS[1])
    for i = 1, #fields, 2 do
      local field, value = fields[i], fields[i + 1]
      local any = string.find(value, '^%-?%d+$') and string.find(field, '.:%x+$')
      if any or string.find(field, string.rep('%x', 32) .. ':%x+$') then
        holder, depth = field, value
      else
        is_lock = is_lock and field == 'mode'
      end
    end
  end
  if not (is_lock and holder) then
    foreign = 'no lock'
  end
end

