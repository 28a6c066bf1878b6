-- The first part of the scripts about holds with notes. The next part is the script for a hold
-- without a note, as the function `run`: such a hold pays nothing for notes.
-- A hash next to the key of a lock has the notes of its holds, by owner without the kind, so that
-- no note is shown for another hold. It lives as long as that key, so notes that a crash leaves
-- behind go with the lease. Failures are ignored: a hold is as good without its note.
-- SETS  `prolong_notes` and `write_note`

-- Gives notes the TTL that their lock now has. Returns 1 if that has succeeded.
local function prolong_notes(notes, lock)
  return redis.pcall('pexpire', notes, redis.call('pttl', lock))
end

-- Writes the note of a hold. No key is left without a TTL, whatever right the user lacks.
local function write_note(notes, lock, owner, text)
  local written = redis.pcall('hset', notes, owner, text)
  if type(written) == 'number' and prolong_notes(notes, lock) ~= 1 then
    if redis.pcall('hdel', notes, owner) ~= 1 then
      redis.pcall('set', notes, '', 'px', 1)
    end
  end
end
