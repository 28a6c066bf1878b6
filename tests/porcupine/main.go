// Checks the histories of the torture with porcupine, an independent checker of linearizability:
// locks, read-write locks and semaphores with their fencing tokens, and the register that
// they protect.
//
//	go run . DIRECTORY           the directory that `--histories` was given
//	go run . -plant FAULT DIR    with a fault planted in the history, which must be found
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// How long the search may take for one name.
const limit = 2 * time.Minute

func main() {
	plant := flag.String("plant", "", "a fault to plant: twice, fence, permit or update")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: porcupine [-plant FAULT] DIRECTORY")
		os.Exit(2)
	}
	histories, err := readAll(flag.Arg(0))
	if err == nil && *plant != "" {
		err = plantFault(histories, *plant)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "porcupine:", err)
		os.Exit(2)
	}
	if !check(histories) {
		os.Exit(1)
	}
}

// check prints a line for each name and returns whether all histories are linearizable.
func check(histories map[int]*History) bool {
	good := true
	for _, name := range names(histories) {
		history := histories[name]
		good = verdict(name, "holds", holdModel(), history.holdOperations()) && good
		good = verdict(name, "register", registerModel(), history.register) && good
	}
	return good
}

func verdict(name int, what string, model porcupine.Model, operations []porcupine.Operation) bool {
	begin := time.Now()
	result := porcupine.CheckOperationsTimeout(model, operations, limit)
	fmt.Printf("name %d, %s: %d operations, %s (%.1fs)\n",
		name, what, len(operations), words[result], time.Since(begin).Seconds())
	return result == porcupine.Ok
}

var words = map[porcupine.CheckResult]string{
	porcupine.Ok:      "linearizable",
	porcupine.Illegal: "NOT LINEARIZABLE",
	porcupine.Unknown: "NOT DECIDED in time",
}

func names(histories map[int]*History) []int {
	names := make([]int, 0, len(histories))
	for name := range histories {
		names = append(names, name)
	}
	sort.Ints(names)
	return names
}

func readAll(directory string) (map[int]*History, error) {
	files, err := filepath.Glob(filepath.Join(directory, "worker-*"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no histories in %s", directory)
	}
	histories := make(map[int]*History)
	for _, file := range files {
		if err := read(file, histories); err != nil {
			return nil, err
		}
	}
	return histories, nil
}
