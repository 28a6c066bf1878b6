package main

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"sort"
	"strconv"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Never is later than every time.
const never = math.MaxInt64

// History is the record of one name.
type History struct {
	holds    []*Hold
	register []porcupine.Operation
}

// Hold is a hold that a worker relied on.
type Hold struct {
	side  Side
	fence uint64
	// The call that began it.
	call, granted int64
	// The time until which it is relied on: the latest promise, or the call that released it.
	until    int64
	released bool
}

// holdOperations makes two operations of each hold. The end of the release means nothing: a drop may
// leave it to another thread, and a lost one ends with the lease.
func (h *History) holdOperations() []porcupine.Operation {
	operations := make([]porcupine.Operation, 0, 2*len(h.holds))
	for number, hold := range h.holds {
		begins := holdInput{begins: true, hold: number, side: hold.side, fence: hold.fence}
		ends := begins
		ends.begins = false
		operations = append(operations,
			porcupine.Operation{Input: begins, Call: hold.call, Return: hold.granted},
			// A worker that is paused in its call may get a hold that is already over.
			porcupine.Operation{Input: ends, Call: max(hold.until, hold.call), Return: never})
	}
	return operations
}

// A call of one thread that has not returned.
type openCall struct {
	start int64
	words []string
}

type thread struct {
	open *openCall
	// Its holds by name. A thread has one at a time.
	holds map[int]*Hold
}

// read reads the history of one process: a line `time thread > call…` when a call begins, and
// `time thread < outcome…` when it has returned. `history.rs` of the torture writes them.
func read(path string, histories map[int]*History) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	threads := make(map[string]*thread)
	reader := bufio.NewReader(file)
	for number := 1; ; number++ {
		line, err := reader.ReadString('\n')
		if err != nil {
			break // The last line of a process that was killed may be a part of one.
		}
		if err := readLine(strings.Fields(line), threads, histories); err != nil {
			return fmt.Errorf("%s:%d: %w", path, number, err)
		}
	}
	for _, number := range sorted(threads) {
		if open := threads[number].open; open != nil {
			if err := threads[number].note(open, never, []string{"unknown"}, histories); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
	}
	return nil
}

func sorted(threads map[string]*thread) []string {
	numbers := make([]string, 0, len(threads))
	for number := range threads {
		numbers = append(numbers, number)
	}
	sort.Strings(numbers)
	return numbers
}

func readLine(words []string, threads map[string]*thread, histories map[int]*History) error {
	if len(words) < 4 {
		return fmt.Errorf("too short")
	}
	time, err := strconv.ParseInt(words[0], 10, 64)
	if err != nil {
		return err
	}
	actor := threads[words[1]]
	if actor == nil {
		actor = &thread{holds: make(map[int]*Hold)}
		threads[words[1]] = actor
	}
	switch {
	case words[2] == ">" && actor.open == nil:
		actor.open = &openCall{time, words[3:]}
		return nil
	case words[2] == "<" && actor.open != nil:
		open := actor.open
		actor.open = nil
		return actor.note(open, time, words[3:], histories)
	default:
		return fmt.Errorf("calls and returns do not alternate")
	}
}

// note records a call and its outcome.
func (t *thread) note(open *openCall, end int64, outcome []string, histories map[int]*History) error {
	numbers, err := parse(open.words[1:])
	if err != nil || len(numbers) == 0 {
		return fmt.Errorf("a call without numbers: %v", open.words)
	}
	results, err := parse(outcome[1:])
	if err != nil {
		return err
	}
	name, what := int(numbers[0]), open.words[0]
	history := histories[name]
	if history == nil {
		history = &History{}
		histories[name] = history
	}
	switch what {
	case "lock", "permit", "share":
		if outcome[0] == "granted" {
			t.granted(history, name, open, end, results)
		}
	case "check":
		if hold := t.holds[name]; hold != nil && outcome[0] == "held" {
			hold.until = max(hold.until, int64(results[0]))
		}
	case "unlock":
		// Of several levels, the last one ends the hold.
		if hold := t.holds[name]; hold != nil && numbers[1] == 1 {
			hold.until, hold.released = min(hold.until, open.start), true
			delete(t.holds, name)
		}
	case "read", "write":
		in := registerInput{writes: what == "write", fence: numbers[1]}
		if in.writes {
			in.value = numbers[2]
		}
		out := registerOutput{unknown: outcome[0] == "unknown", stale: outcome[0] == "stale"}
		if outcome[0] == "value" {
			out.value = results[0]
		}
		history.register = append(history.register,
			porcupine.Operation{Input: in, Output: out, Call: open.start, Return: end})
	default:
		return fmt.Errorf("no such call: %s", what)
	}
	return nil
}

func (t *thread) granted(history *History, name int, open *openCall, end int64, results []uint64) {
	fence, until := results[0], int64(results[2])
	if hold := t.holds[name]; hold != nil && open.words[0] == "lock" && open.words[2] != "1" {
		hold.until = max(hold.until, until) // Another level.
		return
	}
	sides := map[string]Side{"lock": Exclusive, "permit": Permit, "share": Shared}
	hold := &Hold{side: sides[open.words[0]], fence: fence, call: open.start, granted: end, until: until}
	history.holds = append(history.holds, hold)
	t.holds[name] = hold
}

func parse(words []string) ([]uint64, error) {
	numbers := make([]uint64, 0, len(words))
	for _, word := range words {
		number, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, number)
	}
	return numbers, nil
}
