/* Counts to 40, with its state in a file and the gate of gate.py. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int step = 0;
    const char *gate = getenv("GATE");
    FILE *file = fopen(argv[1], "r");
    if (file && fscanf(file, "%d", &step) == 1)
        fclose(file);
    int start = step;
    while (step < 40) {
        step++;
        if (step % 10 == 0) {
            file = fopen(argv[1], "w");
            fprintf(file, "%d\n", step);
            fclose(file);
        }
        if (step == 20) {
            printf("at the gate\n");
            fflush(stdout);
            while (gate && access(gate, F_OK) == 0)
                usleep(100000);
        }
    }
    printf("steps of this start: %d\n", step - start);
    return argc > 2 ? atoi(argv[2]) : 0;
}
