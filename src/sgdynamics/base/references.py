"""The papers behind the library: BibTeX entries, and the public names that build on them.

Plain data, which is read without importing JAX. `sgdynamics.results.citing` selects entries;
docs/citing.md is written from this table (python docs/citing_table.py). `SOURCES` lists every
public function whose docstring names a source; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Reference:
    """One entry of a bibliography.

    Attributes
    ----------
    kind : str
        Type of the BibTeX entry.
    author, title : str
        Authors and title as BibTeX writes them.
    year : int
        Year of publication.
    fields : dict of str to str
        Further fields, such as journal, volume, pages, doi; `eprint` is an arXiv number.
    """

    kind: str
    author: str
    title: str
    year: int
    fields: dict[str, str] = field(default_factory=dict)

    def bibtex(self, key: str) -> str:
        """Return the entry as BibTeX."""
        values = {"author": self.author, "title": self.title, "year": str(self.year), **self.fields}
        if "eprint" in values:
            values["archiveprefix"] = "arXiv"
        lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in values.items())
        return f"@{self.kind}{{{key},\n{lines}\n}}"

    @property
    def surnames(self) -> tuple[str, ...]:
        """Surnames of the authors, in BibTeX."""
        return tuple(author.partition(",")[0] for author in self.author.split(" and "))


NEURIPS = "Advances in Neural Information Processing Systems"
ICML = "International Conference on Machine Learning"
ICLR = "International Conference on Learning Representations"
COLT = "Conference on Learning Theory"

REFERENCES: dict[str, Reference] = {
    "saad1995exact": Reference(
        "article",
        ("Saad, David and Solla, Sara A."),
        ("Exact solution for on-line learning in multilayer neural networks"),
        1995,
        {
            "journal": "Physical Review Letters",
            "volume": "74",
            "pages": "4337--4340",
            "doi": "10.1103/PhysRevLett.74.4337",
        },
    ),
    "saad1995line": Reference(
        "article",
        ("Saad, David and Solla, Sara A."),
        ("On-line learning in soft committee machines"),
        1995,
        {
            "journal": "Physical Review E",
            "volume": "52",
            "pages": "4225--4243",
            "doi": "10.1103/PhysRevE.52.4225",
        },
    ),
    "biehl1995learning": Reference(
        "article",
        ("Biehl, Michael and Schwarze, Holm"),
        ("Learning by on-line gradient descent"),
        1995,
        {
            "journal": "Journal of Physics A: Mathematical and General",
            "volume": "28",
            "pages": "643--656",
            "doi": "10.1088/0305-4470/28/3/018",
        },
    ),
    "goldt2019dynamics": Reference(
        "inproceedings",
        (
            r"Goldt, Sebastian and Advani, Madhu S. and Saxe, Andrew M. and Krzakala, "
            r"Florent and Zdeborov{\'a}, Lenka"
        ),
        (
            "Dynamics of stochastic gradient descent for two-layer neural networks in the "
            "teacher-student setup"
        ),
        2019,
        {
            "booktitle": NEURIPS,
            "volume": "32",
            "eprint": "1906.08632",
        },
    ),
    "veiga2022phase": Reference(
        "inproceedings",
        (
            r"Veiga, Rodrigo and Stephan, Ludovic and Loureiro, Bruno and Krzakala, Florent "
            r"and Zdeborov{\'a}, Lenka"
        ),
        (
            "Phase diagram of stochastic gradient descent in high-dimensional two-layer "
            "neural networks"
        ),
        2022,
        {
            "booktitle": NEURIPS,
            "volume": "35",
            "eprint": "2202.00293",
        },
    ),
    "arnaboldi2023unifying": Reference(
        "inproceedings",
        ("Arnaboldi, Luca and Stephan, Ludovic and Krzakala, Florent and Loureiro, Bruno"),
        (
            r"From high-dimensional \& mean-field dynamics to dimensionless {ODE}s: a "
            r"unifying approach to {SGD} in two-layers networks"
        ),
        2023,
        {
            "booktitle": COLT,
            "pages": "1199--1227",
            "eprint": "2302.05882",
        },
    ),
    "collinswoodfin2024hitting": Reference(
        "article",
        (
            "Collins-Woodfin, Elizabeth and Paquette, Courtney and Paquette, Elliot and "
            "Seroussi, Inbar"
        ),
        (
            "Hitting the high-dimensional notes: an {ODE} for {SGD} learning dynamics on "
            "{GLM}s and multi-index models"
        ),
        2024,
        {
            "journal": "Information and Inference",
            "volume": "13",
            "number": "4",
            "pages": "iaae028",
            "eprint": "2308.08977",
        },
    ),
    "yoshida2019data": Reference(
        "inproceedings",
        ("Yoshida, Yuki and Okada, Masato"),
        (
            "Data-dependence of plateau phenomenon in learning with neural network --- "
            "statistical mechanical analysis"
        ),
        2019,
        {
            "booktitle": NEURIPS,
            "volume": "32",
            "eprint": "2001.03371",
        },
    ),
    "benarous2021online": Reference(
        "article",
        (r"Ben Arous, G{\'e}rard and Gheissari, Reza and Jagannath, Aukosh"),
        ("Online stochastic gradient descent on non-convex losses from high-dimensional inference"),
        2021,
        {
            "journal": "Journal of Machine Learning Research",
            "volume": "22",
            "number": "106",
            "pages": "1--51",
            "eprint": "2003.10409",
        },
    ),
    "benarous2022high": Reference(
        "inproceedings",
        (r"Ben Arous, G{\'e}rard and Gheissari, Reza and Jagannath, Aukosh"),
        ("High-dimensional limit theorems for {SGD}: Effective dynamics and critical scaling"),
        2022,
        {
            "booktitle": NEURIPS,
            "volume": "35",
            "eprint": "2206.04030",
        },
    ),
    "arnaboldi2023escaping": Reference(
        "misc",
        ("Arnaboldi, Luca and Krzakala, Florent and Loureiro, Bruno and Stephan, Ludovic"),
        (
            "Escaping mediocrity: how two-layer networks learn hard generalized linear "
            "models with {SGD}"
        ),
        2023,
        {
            "eprint": "2305.18502",
        },
    ),
    "abbe2023leap": Reference(
        "inproceedings",
        (r"Abbe, Emmanuel and Boix-Adser{\`a}, Enric and Misiakiewicz, Theodor"),
        ("{SGD} learning on neural networks: leap complexity and saddle-to-saddle dynamics"),
        2023,
        {
            "booktitle": COLT,
            "pages": "2552--2623",
            "eprint": "2302.11055",
        },
    ),
    "damian2024computational": Reference(
        "inproceedings",
        ("Damian, Alex and Pillaud-Vivien, Loucas and Lee, Jason D. and Bruna, Joan"),
        ("Computational-statistical gaps in {G}aussian single-index models"),
        2024,
        {
            "booktitle": COLT,
            "eprint": "2403.05529",
        },
    ),
    "mei2018mean": Reference(
        "article",
        ("Mei, Song and Montanari, Andrea and Nguyen, Phan-Minh"),
        ("A mean field view of the landscape of two-layer neural networks"),
        2018,
        {
            "journal": "Proceedings of the National Academy of Sciences",
            "volume": "115",
            "number": "33",
            "pages": "E7665--E7671",
            "doi": "10.1073/pnas.1806579115",
            "eprint": "1804.06561",
        },
    ),
    "safran2018spurious": Reference(
        "inproceedings",
        ("Safran, Itay and Shamir, Ohad"),
        ("Spurious local minima are common in two-layer {ReLU} neural networks"),
        2018,
        {
            "booktitle": ICML,
            "eprint": "1712.08968",
        },
    ),
    "mignacco2020dynamical": Reference(
        "inproceedings",
        (
            r"Mignacco, Francesca and Krzakala, Florent and Urbani, Pierfrancesco and "
            r"Zdeborov{\'a}, Lenka"
        ),
        (
            "Dynamical mean-field theory for stochastic gradient descent in {G}aussian "
            "mixture classification"
        ),
        2020,
        {
            "booktitle": NEURIPS,
            "volume": "33",
            "eprint": "2006.06098",
        },
    ),
    "mignacco2021stochasticity": Reference(
        "article",
        (r"Mignacco, Francesca and Urbani, Pierfrancesco and Zdeborov{\'a}, Lenka"),
        (
            "Stochasticity helps to navigate rough landscapes: comparing "
            "gradient-descent-based algorithms in the phase retrieval problem"
        ),
        2021,
        {
            "journal": "Machine Learning: Science and Technology",
            "volume": "2",
            "number": "3",
            "pages": "035029",
            "eprint": "2103.04902",
        },
    ),
    "celentano2021high": Reference(
        "misc",
        ("Celentano, Michael and Cheng, Chen and Montanari, Andrea"),
        ("The high-dimensional asymptotics of first order methods with random data"),
        2021,
        {
            "eprint": "2112.07572",
        },
    ),
    "dandi2024benefits": Reference(
        "inproceedings",
        (
            r"Dandi, Yatin and Troiani, Emanuele and Arnaboldi, Luca and Pesce, Luca and "
            r"Zdeborov{\'a}, Lenka and Krzakala, Florent"
        ),
        (
            "The benefits of reusing batches for gradient descent in two-layer networks: "
            "breaking the curse of information and leap exponents"
        ),
        2024,
        {
            "booktitle": ICML,
            "eprint": "2402.03220",
        },
    ),
    "bocchi2026escape": Reference(
        "misc",
        (
            "Bocchi, Dario and Regimbeau, Theotime and Lucibello, Carlo and Saglietti, Luca "
            "and Cammarota, Chiara"
        ),
        (
            "Escape dynamics and implicit bias of one-pass {SGD} in overparameterized "
            "quadratic networks"
        ),
        2026,
        {
            "eprint": "2604.03068",
        },
    ),
    "loureiro2023dimension": Reference(
        "misc",
        ("Loureiro, Bruno"),
        ("Dimension-free limits of {SGD} for two-layers neural networks"),
        2023,
        {
            "note": "Slides",
        },
    ),
    "maloney2022solvable": Reference(
        "misc",
        ("Maloney, Alexander and Roberts, Daniel A. and Sully, James"),
        ("A solvable model of neural scaling laws"),
        2022,
        {
            "eprint": "2210.16859",
        },
    ),
    "paquette2024phases": Reference(
        "inproceedings",
        ("Paquette, Elliot and Paquette, Courtney and Xiao, Lechao and Pennington, Jeffrey"),
        ("4+3 phases of compute-optimal neural scaling laws"),
        2024,
        {
            "booktitle": NEURIPS,
            "volume": "37",
            "eprint": "2405.15074",
        },
    ),
    "bordelon2022learning": Reference(
        "inproceedings",
        ("Bordelon, Blake and Pehlevan, Cengiz"),
        ("Learning curves for {SGD} on structured features"),
        2022,
        {
            "booktitle": ICLR,
            "eprint": "2106.02713",
        },
    ),
    "bordelon2022self": Reference(
        "inproceedings",
        ("Bordelon, Blake and Pehlevan, Cengiz"),
        ("Self-consistent dynamical field theory of kernel evolution in wide neural networks"),
        2022,
        {
            "booktitle": NEURIPS,
            "volume": "35",
            "eprint": "2205.09653",
        },
    ),
    "yang2021tensor": Reference(
        "inproceedings",
        ("Yang, Greg and Hu, Edward J."),
        ("Tensor programs {IV}: feature learning in infinite-width neural networks"),
        2021,
        {
            "booktitle": ICML,
            "eprint": "2011.14522",
        },
    ),
    "luo2025multi": Reference(
        "inproceedings",
        (
            "Luo, Kairong and Wen, Haodong and Hu, Shengding and Sun, Zhenbo and Liu, "
            "Zhiyuan and Sun, Maosong and Lyu, Kaifeng and Chen, Wenguang"
        ),
        ("A multi-power law for loss curve prediction across learning rate schedules"),
        2025,
        {
            "booktitle": ICLR,
            "eprint": "2503.12811",
        },
    ),
    "tissue2024scaling": Reference(
        "misc",
        ("Tissue, Howe and Wang, Venus and Wang, Lu"),
        ("Scaling law with learning rate annealing"),
        2024,
        {
            "eprint": "2408.11029",
        },
    ),
    "cui2024phase": Reference(
        "inproceedings",
        (r"Cui, Hugo and Behrens, Freya and Krzakala, Florent and Zdeborov{\'a}, Lenka"),
        (
            "A phase transition between positional and semantic learning in a solvable "
            "model of dot-product attention"
        ),
        2024,
        {
            "booktitle": NEURIPS,
            "volume": "37",
            "eprint": "2402.03902",
        },
    ),
    "refinetti2022dynamics": Reference(
        "inproceedings",
        ("Refinetti, Maria and Goldt, Sebastian"),
        ("The dynamics of representation learning in shallow, non-linear autoencoders"),
        2022,
        {
            "booktitle": ICML,
            "eprint": "2201.02115",
        },
    ),
    "wang2019solvable": Reference(
        "inproceedings",
        ("Wang, Chuang and Hu, Hong and Lu, Yue M."),
        ("A solvable high-dimensional model of {GAN}"),
        2019,
        {
            "booktitle": NEURIPS,
            "volume": "32",
            "eprint": "1805.08349",
        },
    ),
    "kinouchi1992optimal": Reference(
        "article",
        ("Kinouchi, Osame and Caticha, Nestor"),
        ("Optimal generalization in perceptrons"),
        1992,
        {
            "journal": "Journal of Physics A: Mathematical and General",
            "volume": "25",
            "pages": "6243--6250",
            "doi": "10.1088/0305-4470/25/23/020",
        },
    ),
    "biehl1992line": Reference(
        "article",
        ("Biehl, Michael and Schwarze, Holm"),
        ("On-line learning of a time-dependent rule"),
        1992,
        {
            "journal": "Europhysics Letters",
            "volume": "20",
            "number": "8",
            "pages": "733--738",
            "doi": "10.1209/0295-5075/20/8/012",
        },
    ),
    "patel2025rl": Reference(
        "article",
        (
            "Patel, Nishil and Lee, Sebastian and Sarao Mannelli, Stefano and Goldt, Sebastian"
            " and Saxe, Andrew"
        ),
        ("{RL} perceptron: Generalization dynamics of policy learning in high dimensions"),
        2025,
        {
            "journal": "Physical Review X",
            "volume": "15",
            "number": "2",
            "pages": "021051",
            "doi": "10.1103/PhysRevX.15.021051",
            "eprint": "2306.10404",
        },
    ),
    "anlauf1989adatron": Reference(
        "article",
        ("Anlauf, Joachim K. and Biehl, Michael"),
        ("The {AdaTron}: an adaptive perceptron algorithm"),
        1989,
        {
            "journal": "Europhysics Letters",
            "volume": "10",
            "number": "7",
            "pages": "687--692",
            "doi": "10.1209/0295-5075/10/7/014",
        },
    ),
    "defazio2014saga": Reference(
        "inproceedings",
        ("Defazio, Aaron and Bach, Francis and Lacoste-Julien, Simon"),
        (
            "{SAGA}: a fast incremental gradient method with support for non-strongly convex "
            "composite objectives"
        ),
        2014,
        {
            "booktitle": NEURIPS,
            "volume": "27",
            "pages": "1646--1654",
            "eprint": "1407.0202",
        },
    ),
    "johnson2013accelerating": Reference(
        "inproceedings",
        ("Johnson, Rie and Zhang, Tong"),
        ("Accelerating stochastic gradient descent using predictive variance reduction"),
        2013,
        {
            "booktitle": NEURIPS,
            "volume": "26",
            "pages": "315--323",
        },
    ),
    "chambolle2011first": Reference(
        "article",
        ("Chambolle, Antonin and Pock, Thomas"),
        ("A first-order primal-dual algorithm for convex problems with applications to imaging"),
        2011,
        {
            "journal": "Journal of Mathematical Imaging and Vision",
            "volume": "40",
            "number": "1",
            "pages": "120--145",
            "doi": "10.1007/s10851-010-0251-1",
        },
    ),
    "condat2013primal": Reference(
        "article",
        ("Condat, Laurent"),
        (
            "A primal-dual splitting method for convex optimization involving Lipschitzian, "
            "proximable and linear composite terms"
        ),
        2013,
        {
            "journal": "Journal of Optimization Theory and Applications",
            "volume": "158",
            "number": "2",
            "pages": "460--479",
            "doi": "10.1007/s10957-012-0245-9",
        },
    ),
    "polyak1964some": Reference(
        "article",
        ("Polyak, Boris T."),
        ("Some methods of speeding up the convergence of iteration methods"),
        1964,
        {
            "journal": "USSR Computational Mathematics and Mathematical Physics",
            "volume": "4",
            "number": "5",
            "pages": "1--17",
            "doi": "10.1016/0041-5553(64)90137-5",
        },
    ),
    "nesterov1983method": Reference(
        "article",
        ("Nesterov, Yurii"),
        ("A method for solving the convex programming problem with convergence rate {$O(1/k^2)$}"),
        1983,
        {
            "journal": "Doklady Akademii Nauk SSSR",
            "volume": "269",
            "pages": "543--547",
        },
    ),
    "nesterov1984minimization": Reference(
        "article",
        ("Nesterov, Yurii"),
        ("Minimization methods for nonsmooth convex and quasiconvex functions"),
        1984,
        {
            "journal": "Matekon",
            "volume": "29",
            "number": "3",
            "pages": "519--531",
        },
    ),
    "ruppert1988efficient": Reference(
        "techreport",
        ("Ruppert, David"),
        ("Efficient estimations from a slowly convergent {R}obbins-{M}onro process"),
        1988,
        {
            "institution": (
                "Cornell University, School of Operations Research and Industrial Engineering"
            ),
            "number": "781",
        },
    ),
    "polyak1992acceleration": Reference(
        "article",
        ("Polyak, Boris T. and Juditsky, Anatoli B."),
        ("Acceleration of stochastic approximation by averaging"),
        1992,
        {
            "journal": "SIAM Journal on Control and Optimization",
            "volume": "30",
            "number": "4",
            "pages": "838--855",
            "doi": "10.1137/0330046",
        },
    ),
    "duchi2011adaptive": Reference(
        "article",
        ("Duchi, John and Hazan, Elad and Singer, Yoram"),
        ("Adaptive subgradient methods for online learning and stochastic optimization"),
        2011,
        {
            "journal": "Journal of Machine Learning Research",
            "volume": "12",
            "pages": "2121--2159",
        },
    ),
    "tieleman2012lecture": Reference(
        "misc",
        ("Tieleman, Tijmen and Hinton, Geoffrey"),
        (
            "Lecture 6.5 --- {RMSProp}: divide the gradient by a running average of its "
            "recent magnitude"
        ),
        2012,
        {
            "note": "COURSERA: Neural Networks for Machine Learning",
        },
    ),
    "sutskever2013importance": Reference(
        "inproceedings",
        ("Sutskever, Ilya and Martens, James and Dahl, George and Hinton, Geoffrey"),
        ("On the importance of initialization and momentum in deep learning"),
        2013,
        {
            "booktitle": ICML,
        },
    ),
    "pascanu2013difficulty": Reference(
        "inproceedings",
        ("Pascanu, Razvan and Mikolov, Tomas and Bengio, Yoshua"),
        ("On the difficulty of training recurrent neural networks"),
        2013,
        {
            "booktitle": ICML,
            "eprint": "1211.5063",
        },
    ),
    "kingma2015adam": Reference(
        "inproceedings",
        ("Kingma, Diederik P. and Ba, Jimmy"),
        ("Adam: a method for stochastic optimization"),
        2015,
        {
            "booktitle": ICLR,
            "eprint": "1412.6980",
        },
    ),
    "abadi2016deep": Reference(
        "inproceedings",
        (
            r"Abadi, Mart{\'\i}n and Chu, Andy and Goodfellow, Ian and McMahan, H. Brendan "
            r"and Mironov, Ilya and Talwar, Kunal and Zhang, Li"
        ),
        ("Deep learning with differential privacy"),
        2016,
        {
            "booktitle": "ACM SIGSAC Conference on Computer and Communications Security",
            "pages": "308--318",
            "eprint": "1607.00133",
        },
    ),
    "bernstein2018signsgd": Reference(
        "inproceedings",
        (
            "Bernstein, Jeremy and Wang, Yu-Xiang and Azizzadenesheli, Kamyar and "
            "Anandkumar, Animashree"
        ),
        ("{signSGD}: compressed optimisation for non-convex problems"),
        2018,
        {
            "booktitle": ICML,
            "eprint": "1802.04434",
        },
    ),
    "loshchilov2019decoupled": Reference(
        "inproceedings",
        ("Loshchilov, Ilya and Hutter, Frank"),
        ("Decoupled weight decay regularization"),
        2019,
        {
            "booktitle": ICLR,
            "eprint": "1711.05101",
        },
    ),
    "ward2019adagrad": Reference(
        "inproceedings",
        (r"Ward, Rachel and Wu, Xiaoxia and Bottou, L{\'e}on"),
        ("{AdaGrad} stepsizes: sharp convergence over nonconvex landscapes"),
        2019,
        {
            "booktitle": ICML,
            "eprint": "1806.01811",
        },
    ),
    "cutkosky2020momentum": Reference(
        "inproceedings",
        ("Cutkosky, Ashok and Mehta, Harsh"),
        ("Momentum improves normalized {SGD}"),
        2020,
        {
            "booktitle": ICML,
            "eprint": "2002.03305",
        },
    ),
    "foret2021sharpness": Reference(
        "inproceedings",
        ("Foret, Pierre and Kleiner, Ariel and Mobahi, Hossein and Neyshabur, Behnam"),
        ("Sharpness-aware minimization for efficiently improving generalization"),
        2021,
        {
            "booktitle": ICLR,
            "eprint": "2010.01412",
        },
    ),
    "defazio2024road": Reference(
        "inproceedings",
        (
            "Defazio, Aaron and Yang, Xingyu Alice and Mehta, Harsh and Mishchenko, "
            "Konstantin and Khaled, Ahmed and Cutkosky, Ashok"
        ),
        ("The road less scheduled"),
        2024,
        {
            "booktitle": NEURIPS,
            "volume": "37",
            "eprint": "2405.15682",
        },
    ),
    "jordan2024muon": Reference(
        "misc",
        (
            "Jordan, Keller and Jin, Yuchen and Boza, Vlado and You, Jiacheng and Cesista, "
            "Franz and Newhouse, Laker and Bernstein, Jeremy"
        ),
        ("Muon: an optimizer for hidden layers in neural networks"),
        2024,
        {
            "url": "https://kellerjordan.github.io/posts/muon/",
        },
    ),
    "xiao2025exact": Reference(
        "inproceedings",
        ("Xiao, Ke Liang and Marshall, Noah and Agarwala, Atish and Paquette, Elliot"),
        (
            "Exact risk curves of {signSGD} in high-dimensions: quantifying preconditioning "
            "and noise-compression effects"
        ),
        2025,
        {
            "booktitle": ICML,
            "eprint": "2411.12135",
        },
    ),
    "ferbach2025dimension": Reference(
        "inproceedings",
        (
            "Ferbach, Damien and Everett, Katie and Gidel, Gauthier and Paquette, Elliot "
            "and Paquette, Courtney"
        ),
        ("Dimension-adapted momentum outscales {SGD}"),
        2025,
        {
            "booktitle": NEURIPS,
            "volume": "38",
            "eprint": "2505.16098",
        },
    ),
    "garcia2026diagonal": Reference(
        "misc",
        (
            r"Garc{\'\i}a Malaxechebarr{\'\i}a, Bego{\~n}a and Paquette, Courtney "
            r"and Drusvyatskiy, Dmitriy and Fazel, Maryam"
        ),
        ("High-dimensional limit of {SGD} for diagonal linear networks"),
        2026,
        {
            "eprint": "2605.17177",
        },
    ),
    "woodworth2020kernel": Reference(
        "inproceedings",
        (
            "Woodworth, Blake and Gunasekar, Suriya and Lee, Jason D. and Moroshko, Edward "
            "and Savarese, Pedro and Golan, Itay and Soudry, Daniel and Srebro, Nathan"
        ),
        ("Kernel and rich regimes in overparametrized models"),
        2020,
        {
            "booktitle": "Conference on Learning Theory",
            "pages": "3635--3673",
            "eprint": "2002.09277",
        },
    ),
    "thrampoulidis2015regularized": Reference(
        "inproceedings",
        "Thrampoulidis, Christos and Oymak, Samet and Hassibi, Babak",
        ("Regularized linear regression: a precise analysis of the estimation error"),
        2015,
        {
            "booktitle": "Conference on Learning Theory",
            "pages": "1683--1709",
        },
    ),
    "donoho2009message": Reference(
        "article",
        "Donoho, David L. and Maleki, Arian and Montanari, Andrea",
        "Message-passing algorithms for compressed sensing",
        2009,
        {
            "journal": "Proceedings of the National Academy of Sciences",
            "volume": "106",
            "number": "45",
            "pages": "18914--18919",
            "doi": "10.1073/pnas.0909892106",
            "eprint": "0907.3574",
        },
    ),
    "rangan2011generalized": Reference(
        "inproceedings",
        "Rangan, Sundeep",
        "Generalized approximate message passing for estimation with random linear mixing",
        2011,
        {
            "booktitle": "IEEE International Symposium on Information Theory",
            "pages": "2168--2172",
            "doi": "10.1109/ISIT.2011.6033942",
            "eprint": "1010.5141",
        },
    ),
    "javanmard2013state": Reference(
        "article",
        "Javanmard, Adel and Montanari, Andrea",
        (
            "State evolution for general approximate message passing algorithms, with "
            "applications to spatial coupling"
        ),
        2013,
        {
            "journal": "Information and Inference",
            "volume": "2",
            "number": "2",
            "pages": "115--144",
            "doi": "10.1093/imaiai/iat004",
            "eprint": "1211.5164",
        },
    ),
    "barbier2019optimal": Reference(
        "article",
        (
            r"Barbier, Jean and Krzakala, Florent and Macris, Nicolas and Miolane, L{\'e}o "
            r"and Zdeborov{\'a}, Lenka"
        ),
        "Optimal errors and phase transitions in high-dimensional generalized linear models",
        2019,
        {
            "journal": "Proceedings of the National Academy of Sciences",
            "volume": "116",
            "number": "12",
            "pages": "5451--5460",
            "doi": "10.1073/pnas.1802705116",
            "eprint": "1708.03395",
        },
    ),
    "mondelli2021approximate": Reference(
        "inproceedings",
        "Mondelli, Marco and Venkataramanan, Ramji",
        ("Approximate message passing with spectral initialization for generalized linear models"),
        2021,
        {
            "booktitle": "International Conference on Artificial Intelligence and Statistics",
            "pages": "397--405",
            "eprint": "2010.03460",
        },
    ),
    "aubin2018committee": Reference(
        "inproceedings",
        (
            "Aubin, Benjamin and Maillard, Antoine and Barbier, Jean and Krzakala, Florent "
            r"and Macris, Nicolas and Zdeborov{\'a}, Lenka"
        ),
        (
            "The committee machine: computational to statistical gaps in learning a "
            "two-layers neural network"
        ),
        2018,
        {
            "booktitle": NEURIPS,
            "volume": "31",
            "eprint": "1806.05451",
        },
    ),
    "maillard2020phase": Reference(
        "inproceedings",
        r"Maillard, Antoine and Loureiro, Bruno and Krzakala, Florent and Zdeborov{\'a}, Lenka",
        "Phase retrieval in high dimensions: statistical and computational phase transitions",
        2020,
        {
            "booktitle": NEURIPS,
            "volume": "33",
            "pages": "11071--11082",
            "eprint": "2006.05228",
        },
    ),
    "mondelli2019fundamental": Reference(
        "article",
        "Mondelli, Marco and Montanari, Andrea",
        "Fundamental limits of weak recovery with applications to phase retrieval",
        2019,
        {
            "journal": "Foundations of Computational Mathematics",
            "volume": "19",
            "number": "3",
            "pages": "703--773",
            "doi": "10.1007/s10208-018-9395-y",
            "eprint": "1708.05932",
        },
    ),
    "troiani2024fundamental": Reference(
        "misc",
        (
            r"Troiani, Emanuele and Dandi, Yatin and Defilippis, Leonardo and Zdeborov{\'a}, "
            "Lenka and Loureiro, Bruno and Krzakala, Florent"
        ),
        (
            "Fundamental computational limits of weak learnability in high-dimensional "
            "multi-index models"
        ),
        2024,
        {
            "eprint": "2405.15480",
        },
    ),
    "sur2019modern": Reference(
        "article",
        r"Sur, Pragya and Cand{\`e}s, Emmanuel J.",
        "A modern maximum-likelihood theory for high-dimensional logistic regression",
        2019,
        {
            "journal": "Proceedings of the National Academy of Sciences",
            "volume": "116",
            "number": "29",
            "pages": "14516--14525",
            "doi": "10.1073/pnas.1810420116",
            "eprint": "1803.06964",
        },
    ),
    "thrampoulidis2018precise": Reference(
        "article",
        "Thrampoulidis, Christos and Abbasi, Ehsan and Hassibi, Babak",
        "Precise error analysis of regularized {M}-estimators in high dimensions",
        2018,
        {
            "journal": "IEEE Transactions on Information Theory",
            "volume": "64",
            "number": "8",
            "pages": "5592--5628",
            "doi": "10.1109/TIT.2018.2840720",
            "eprint": "1601.06233",
        },
    ),
    "mignacco2020role": Reference(
        "inproceedings",
        (
            "Mignacco, Francesca and Krzakala, Florent and Lu, Yue M. and Urbani, "
            r"Pierfrancesco and Zdeborov{\'a}, Lenka"
        ),
        (
            "The role of regularization in classification of high-dimensional noisy "
            "{G}aussian mixture"
        ),
        2020,
        {
            "booktitle": ICML,
            "pages": "6874--6883",
            "eprint": "2002.11544",
        },
    ),
    "loureiro2021learning": Reference(
        "inproceedings",
        (
            r"Loureiro, Bruno and Gerbelot, C{\'e}dric and Cui, Hugo and Goldt, Sebastian "
            r"and Krzakala, Florent and M{\'e}zard, Marc and Zdeborov{\'a}, Lenka"
        ),
        (
            "Learning curves of generic features maps for realistic datasets with a "
            "teacher-student model"
        ),
        2021,
        {
            "booktitle": NEURIPS,
            "volume": "34",
            "pages": "18137--18151",
            "eprint": "2102.08127",
        },
    ),
    "candes2020phase": Reference(
        "article",
        r"Cand{\`e}s, Emmanuel J. and Sur, Pragya",
        (
            "The phase transition for the existence of the maximum likelihood estimate in "
            "high-dimensional logistic regression"
        ),
        2020,
        {
            "journal": "The Annals of Statistics",
            "volume": "48",
            "number": "1",
            "pages": "27--42",
            "doi": "10.1214/18-AOS1789",
            "eprint": "1804.09753",
        },
    ),
    "montanari2019generalization": Reference(
        "misc",
        "Montanari, Andrea and Ruan, Feng and Sohn, Youngtak and Yan, Jun",
        (
            "The generalization error of max-margin linear classifiers: high-dimensional "
            "asymptotics in the overparametrized regime"
        ),
        2019,
        {
            "eprint": "1911.01544",
        },
    ),
    "soudry2018implicit": Reference(
        "article",
        (
            "Soudry, Daniel and Hoffer, Elad and Nacson, Mor Shpigel and Gunasekar, Suriya "
            "and Srebro, Nathan"
        ),
        "The implicit bias of gradient descent on separable data",
        2018,
        {
            "journal": "Journal of Machine Learning Research",
            "volume": "19",
            "number": "70",
            "pages": "1--57",
            "eprint": "1710.10345",
        },
    ),
    "kramers1940brownian": Reference(
        "article",
        "Kramers, Hendrik A.",
        "{B}rownian motion in a field of force and the diffusion model of chemical reactions",
        1940,
        {
            "journal": "Physica",
            "volume": "7",
            "number": "4",
            "pages": "284--304",
            "doi": "10.1016/S0031-8914(40)90098-2",
        },
    ),
    "zhang2025adam": Reference(
        "inproceedings",
        (
            "Zhang, Yushun and Chen, Congliang and Li, Ziniu and Ding, Tian and Wu, Chenwei "
            "and Kingma, Diederik P. and Ye, Yinyu and Luo, Zhi-Quan and Sun, Ruoyu"
        ),
        "Adam-mini: use fewer learning rates to gain more",
        2025,
        {
            "booktitle": ICLR,
            "eprint": "2406.16793",
        },
    ),
    "stich2019local": Reference(
        "inproceedings",
        "Stich, Sebastian U.",
        "Local {SGD} converges fast and communicates little",
        2019,
        {
            "booktitle": ICLR,
            "eprint": "1805.09767",
        },
    ),
    "stich2018sparsified": Reference(
        "inproceedings",
        "Stich, Sebastian U. and Cordonnier, Jean-Baptiste and Jaggi, Martin",
        "Sparsified {SGD} with memory",
        2018,
        {
            "booktitle": NEURIPS,
            "volume": "31",
            "eprint": "1809.07599",
        },
    ),
    "douillard2023diloco": Reference(
        "misc",
        (
            "Douillard, Arthur and Feng, Qixuan and Rusu, Andrei A. and Chhaparia, Rachita and "
            "Donchev, Yani and Kuncoro, Adhiguna and Ranzato, Marc'Aurelio and Szlam, Arthur and "
            "Shen, Jiajun"
        ),
        "{DiLoCo}: distributed low-communication training of language models",
        2023,
        {
            "eprint": "2311.08105",
        },
    ),
    "cho2009kernel": Reference(
        "inproceedings",
        "Cho, Youngmin and Saul, Lawrence K.",
        "Kernel methods for deep learning",
        2009,
        {
            "booktitle": NEURIPS,
            "volume": "22",
        },
    ),
    "owen1995randomly": Reference(
        "incollection",
        "Owen, Art B.",
        "Randomly permuted {$(t,m,s)$}-nets and {$(t,s)$}-sequences",
        1995,
        {
            "booktitle": "Monte Carlo and Quasi-Monte Carlo Methods in Scientific Computing",
            "publisher": "Springer",
            "pages": "299--317",
            "doi": "10.1007/978-1-4612-2552-2_19",
        },
    ),
    "hu2022lora": Reference(
        "inproceedings",
        (
            "Hu, Edward J. and Shen, Yelong and Wallis, Phillip and Allen-Zhu, Zeyuan and "
            "Li, Yuanzhi and Wang, Shean and Wang, Lu and Chen, Weizhu"
        ),
        "{LoRA}: low-rank adaptation of large language models",
        2022,
        {
            "booktitle": ICLR,
            "eprint": "2106.09685",
        },
    ),
}

# The ODE of overlaps, from its derivation to its proofs.
_ODE = ("saad1995exact", "saad1995line", "biehl1995learning", "goldt2019dynamics")
# Papers behind public names: solvers and questions, kinds of problems and algorithms, and updates.
SOURCES: dict[str, tuple[str, ...]] = {
    "solve_ode": _ODE,
    "solve_sde": ("arnaboldi2023escaping", "benarous2022high"),
    "solve_mean_field": ("mei2018mean", "arnaboldi2023unifying"),
    "solve_dmft": ("mignacco2020dynamical", "mignacco2021stochasticity", "celentano2021high"),
    "solve_linear": ("bordelon2022learning",),
    "exit_time": ("arnaboldi2023escaping", "benarous2021online"),
    "overlaps_of": ("saad1995line",),
    "fixed_points": ("saad1995line",),
    "hessian_spectrum": ("safran2018spurious",),
    "regime": ("loureiro2023dimension", "veiga2022phase"),
    "effective_dynamics": ("benarous2022high",),
    "effective_scaling": ("benarous2022high",),
    "information_exponent": ("benarous2021online",),
    "generative_exponent": ("damian2024computational",),
    "leap_complexity": ("abbe2023leap",),
    "sample_complexity": ("benarous2021online", "damian2024computational"),
    "forecast": ("luo2025multi", "tissue2024scaling"),
    "scaling.RandomFeatures": ("maloney2022solvable", "paquette2024phases"),
    "scaling.phase": ("paquette2024phases",),
    "TeacherStudent": ("saad1995line", "goldt2019dynamics"),
    "MultiIndex": ("benarous2022high", "collinswoodfin2024hitting"),
    "GaussianMixture": ("benarous2022high",),
    "DeepLinear": ("yang2021tensor", "bordelon2022self"),
    "WideNetwork": ("bordelon2022self", "yang2021tensor"),
    "SpikedTensor": ("benarous2022high",),
    "SpikedTensor.risk": ("benarous2022high",),
    "covariance": ("yoshida2019data", "collinswoodfin2024hitting"),
    "activation erf": ("saad1995line",),
    "activation relu": ("cho2009kernel",),
    "expectation sampled": ("owen1995randomly",),
    "AMP": (
        "donoho2009message",
        "rangan2011generalized",
        "javanmard2013state",
        "barbier2019optimal",
        "mondelli2021approximate",
    ),
    "bayes_optimal": ("barbier2019optimal", "aubin2018committee", "maillard2020phase"),
    "weak_recovery": (
        "mondelli2019fundamental",
        "barbier2019optimal",
        "troiani2024fundamental",
    ),
    "erm": (
        "sur2019modern",
        "thrampoulidis2018precise",
        "mignacco2020role",
        "loureiro2021learning",
    ),
    "max_margin": ("candes2020phase", "montanari2019generalization", "soudry2018implicit"),
    "models.lora": ("hu2022lora",),
    "models.positional_semantic": ("cui2024phase",),
    "models.autoencoder": ("refinetti2022dynamics",),
    "models.perceptron": ("kinouchi1992optimal", "biehl1992line", "anlauf1989adatron"),
    "models.gan": ("wang2019solvable",),
    "MultiPassSGD": ("mignacco2021stochasticity",),
    "PersistentSGD": ("mignacco2021stochasticity",),
    "DiagonalNetwork": (
        "garcia2026diagonal",
        "woodworth2020kernel",
        "thrampoulidis2015regularized",
    ),
    "Workers": ("stich2019local", "douillard2023diloco"),
    "updates.momentum": ("polyak1964some", "sutskever2013importance"),
    "updates.nesterov": ("nesterov1983method", "sutskever2013importance"),
    "updates.polyak": ("polyak1992acceleration", "ruppert1988efficient"),
    "updates.schedule_free": ("defazio2024road",),
    "updates.dana": ("ferbach2025dimension",),
    "updates.clipped": ("pascanu2013difficulty", "abadi2016deep"),
    "updates.normalised": ("nesterov1984minimization", "cutkosky2020momentum"),
    "updates.reuse": ("dandi2024benefits",),
    "updates.sparse": ("stich2018sparsified",),
    "updates.sam": ("foret2021sharpness",),
    "updates.muon": ("jordan2024muon",),
    "updates.adagrad_norm": ("ward2019adagrad",),
    "updates.sign": ("bernstein2018signsgd", "xiao2025exact"),
    "updates.adam": ("kingma2015adam", "loshchilov2019decoupled", "xiao2025exact"),
    "updates.rmsprop": ("tieleman2012lecture",),
    "updates.adagrad": ("duchi2011adaptive",),
    "updates.weight_decay": ("loshchilov2019decoupled",),
    "updates.gradient_noise": ("abadi2016deep",),
    "updates.inertia": ("kramers1940brownian",),
    "updates.saga": ("defazio2014saga",),
    "updates.svrg": ("johnson2013accelerating",),
    "updates.pdhg": ("chambolle2011first", "condat2013primal"),
    "updates.row_adam": ("kingma2015adam", "zhang2025adam"),
    "papers.escaping_mediocrity": ("arnaboldi2023escaping",),
    "papers.effective_dynamics": ("benarous2022high",),
    "papers.rough_landscapes": ("mignacco2021stochasticity",),
    "papers.quadratic_networks": ("bocchi2026escape",),
    "papers.dimension_free": ("loureiro2023dimension",),
    "papers.optimisers.reuse_drift": ("dandi2024benefits",),
    "papers.several_inputs.late_error": (
        "kinouchi1992optimal",
        "biehl1992line",
        "anlauf1989adatron",
    ),
    "papers.several_inputs.reward_drift": ("patel2025rl",),
}
# Prefixes under which a record names models and updates.
PREFIXES = ("", "models.", "updates.", "scaling.", "papers.")


def references_of(name: str) -> tuple[str, ...]:
    """Return the keys of the papers behind a public name; empty if there are none."""
    for prefix in PREFIXES:
        if prefix + name in SOURCES:
            return SOURCES[prefix + name]
    return ()


def software_entry(version: str) -> str:
    """Return the BibTeX entry of the library."""
    return (
        "@software{sgdynamics,\n"
        "  author = {{The sgdynamics authors}},\n"
        "  title = {sgdynamics: exact high-dimensional dynamics of {SGD}},\n"
        f"  version = {{{version}}},\n"
        "  year = {2026},\n"
        "  license = {MIT}\n"
        "}"
    )
