// One etcd member, or the clients of a measurement of concurrency.Mutex: see ../README.md.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
)

func main() {
	log.SetOutput(os.Stderr)
	if len(os.Args) > 1 && os.Args[1] == "member" {
		runMember(os.Args[2:])
		return
	}
	endpoints := flag.String("endpoints", "", "of all members, comma-separated")
	workload := flag.String("workload", "W1", "W1, W2 or W3")
	clients := flag.Int("n", 1, "clients")
	secs := flag.Int("secs", 5, "measured seconds, after two of warm-up")
	ttl := flag.Int("ttl", 10, "of a session's lease, seconds")
	pids := flag.String("pids", "", "of the members, comma-separated")
	flag.Parse()

	sessions, err := openSessions(strings.Split(*endpoints, ","), *clients, *ttl)
	check(err)
	row := measure(sessions, *workload == "W3", *secs, *pids)
	line, err := json.Marshal(row)
	check(err)
	fmt.Println(string(line))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
